"""The compiled kernels are there, or their tests would be skipped unnoticed."""

import shutil
import sysconfig

from fairseq_convattn.ops import native


def test_kernels_are_compiled_where_there_is_a_compiler():
    compiler = shutil.which(sysconfig.get_config_var("CC").split()[0])
    assert native.is_built() or not compiler, native.NOT_BUILT

"""How positions enter a trained model (Wennberg and Henter 2021, section 2).

``python -m fairseq_convattn.analysis --help`` is the command.
"""

/* HAS_AMX: the compiler has its instructions, and Linux can allow them. */

#if defined(__x86_64__) && defined(__linux__) && (__GNUC__ >= 12 || __clang_major__ >= 16)
#define HAS_AMX
#endif

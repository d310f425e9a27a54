// stdout: xml
// errno kept by free; malloc_trim, mallinfo2, mallinfo, malloc_stats, mallopt; malloc_info writes XML (the
// runner parses it).
#include "check.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

int main(void) {
    void *objects[200];
    for (int i = 0; i < 200; i++) objects[i] = malloc((size_t)1 << (i % 25));
    for (int i = 0; i < 200; i++) {
        errno = 4711;
        free(objects[i]);
        CHECK(errno == 4711, "free of an object of %zu bytes changed errno to %d", (size_t)1 << (i % 25), errno);
    }
    errno = 42;
    void *p = malloc(100);
    free(p);
    p = malloc(MIB(5));
    free(p);
    free(NULL);
    CHECK(errno == 42, "calls that succeed need not, and free must not, change errno; it is %d", errno);

    char *live = malloc(MIB(64));
    memset(live, 1, MIB(64));
    struct mallinfo2 with = mallinfo2();
    size_t in_use = with.uordblks + with.hblkhd;
    CHECK(in_use >= MIB(64), "64 MiB are live, mallinfo2 says %zu bytes in use", in_use);
    CHECK(in_use < MIB(1024), "mallinfo2 says %zu bytes in use", in_use);
    CHECK(with.arena + with.hblkhd >= in_use, "arena %zu + mapped %zu < in use %zu", with.arena, with.hblkhd, in_use);
    struct mallinfo narrow = mallinfo();
    CHECK((unsigned)narrow.uordblks + (unsigned)narrow.hblkhd >= MIB(64), "mallinfo says %d + %d", narrow.uordblks, narrow.hblkhd);
    free(live);
    struct mallinfo2 without = mallinfo2();
    CHECK(without.uordblks + without.hblkhd + MIB(60) <= in_use, "64 MiB freed, in use %zu before and %zu after", in_use,
          without.uordblks + without.hblkhd);

    int trimmed = malloc_trim(0);
    CHECK(trimmed == 0 || trimmed == 1, "malloc_trim gave %d", trimmed);
    trimmed = malloc_trim(MIB(1));
    CHECK(trimmed == 0 || trimmed == 1, "malloc_trim gave %d", trimmed);

    int settings[] = {M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX, M_ARENA_TEST, M_CHECK_ACTION};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        int told = mallopt(settings[i], 1 << 17);
        CHECK(told == 0 || told == 1, "mallopt(%d) gave %d", settings[i], told);
    }
    malloc_stats();

    CHECK(malloc_info(1, stdout) != 0, "malloc_info with options other than 0 is an error");
    CHECK(malloc_info(0, stdout) == 0, "malloc_info gave an error");
    return 0;
}

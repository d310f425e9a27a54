// Without memory: bad_alloc through the new_handler, new tries again after a handler that frees, nothrow
// gives nullptr, a handler may throw or remove itself.
#include "check.h"
#include <new>
#include <vector>
#include <sys/resource.h>

static int calls;
static const size_t impossible = opaque_size((size_t)PTRDIFF_MAX - 100);

template <class Call> static bool throws(Call call) {
    try {
        opaque(call());
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static std::vector<char *> hoard;
static void release() {
    calls++;
    if (hoard.empty()) {
        std::set_new_handler(nullptr);
        return;
    }
    free(hoard.back());
    hoard.pop_back();
}

struct Own : std::bad_alloc {};

int main() {
    std::align_val_t line{64};
    CHECK(throws([] { return ::operator new(impossible); }), "new of %zu", impossible);
    CHECK(throws([] { return ::operator new[](impossible); }), "new[] of %zu", impossible);
    CHECK(throws([=] { return ::operator new(impossible, line); }), "new of %zu, aligned", impossible);
    CHECK(throws([=] { return ::operator new[](impossible, line); }), "new[] of %zu, aligned", impossible);
    CHECK(throws([] { return (void *)new char[impossible]; }), "new char[%zu]", impossible);
    CHECK(!::operator new(impossible, std::nothrow), "nothrow must give nullptr");
    CHECK(!::operator new[](impossible, std::nothrow), "nothrow must give nullptr");
    CHECK(!::operator new(impossible, line, std::nothrow), "nothrow must give nullptr");
    CHECK(!::operator new[](impossible, line, std::nothrow), "nothrow must give nullptr");

    // The handler is called, once for each try, until it gives up by removing itself.
    for (int form = 0; form < 8; form++) {
        calls = 0;
        std::set_new_handler([] { if (++calls == 3) std::set_new_handler(nullptr); });
        bool failed = throws([=]() -> void * {
            void *p = form == 0 ? ::operator new(impossible) : form == 1 ? ::operator new[](impossible)
                    : form == 2 ? ::operator new(impossible, line) : form == 3 ? ::operator new[](impossible, line)
                    : form == 4 ? ::operator new(impossible, std::nothrow) : form == 5 ? ::operator new[](impossible, std::nothrow)
                    : form == 6 ? ::operator new(impossible, line, std::nothrow) : ::operator new[](impossible, line, std::nothrow);
            CHECK(p == nullptr, "form %d gave %p", form, p);
            return p;
        });
        CHECK(failed == (form < 4), "form %d: exception or none", form);
        CHECK(calls == 3, "form %d: the handler was called %d times, not 3", form, calls);
    }
    // A handler that throws: new passes the exception on, nothrow turns it into nullptr.
    std::set_new_handler([] { throw Own(); });
    bool own = false;
    try {
        opaque(::operator new(impossible));
    } catch (const Own &) {
        own = true;
    }
    CHECK(own, "the handler's own exception");
    CHECK(!::operator new(impossible, std::nothrow), "nothrow with a throwing handler");
    std::set_new_handler(nullptr);

    // Memory runs out for real (512 MiB of address space more), and the handler frees some of it.
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages = 0;
    CHECK(statm && fscanf(statm, "%ld", &pages) == 1, "cannot read /proc/self/statm");
    fclose(statm);
    // Reserved before memory runs out: a reservation at the limit may call the handler, too.
    std::vector<char *> made;
    hoard.reserve(200000);
    made.reserve(200000);
    for (void *p; (p = malloc(MIB(1))) && hoard.size() < 100;) hoard.push_back((char *)p);
    rlimit limit{(rlim_t)pages * 4096 + MIB(512), (rlim_t)pages * 4096 + MIB(512)};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    while (char *p = (char *)malloc(MIB(1))) {
        hoard.push_back(p);
        CHECK(hoard.size() < 100000, "RLIMIT_AS does not limit");
    }
    size_t before = hoard.size();
    CHECK(before > 100, "only %zu MiB could be had", before);
    calls = 0;
    std::set_new_handler(release);
    // Calls from here may find room that calls from above did not: as many as that takes.
    while (calls == 0 && made.size() < before) made.push_back((char *)::operator new(MIB(1)));
    CHECK(calls >= 1 && !hoard.empty(), "the handler freed memory (%d calls, %zu of %zu left)", calls, hoard.size(), before);
    CHECK(!made.empty(), "new gave nothing at the limit (%zu of %zu left)", hoard.size(), before);
    memset(made.back(), 1, MIB(1));
    for (char *each : made) ::operator delete(each);
    for (char *each : hoard) free(each);
    return 0;
}

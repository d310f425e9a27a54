// All forms of operator new and delete: plain, array, nothrow, sized, aligned, and each of their
// combinations.
#include "check.h"
#include <memory>
#include <new>
#include <string>
#include <vector>

template <size_t Alignment> struct alignas(Alignment) Aligned { char bytes[Alignment * 3 / 2]; };

template <size_t Alignment> static void expression() {
    using Object = Aligned<Alignment>;
    Object *one = new Object, *many = new Object[7], *calm = new (std::nothrow) Object;
    for (Object *p : {one, many, calm}) CHECK((uintptr_t)p % Alignment == 0, "new gave %p for alignment %zu", (void *)p, Alignment);
    fill(one, sizeof *one, 1);
    fill(many, 7 * sizeof *many, 2);
    fill(calm, sizeof *calm, 3);
    expect(one, sizeof *one, 1, "new");
    expect(many, 7 * sizeof *many, 2, "new[]");
    expect(calm, sizeof *calm, 3, "new (nothrow)");
    delete one;
    delete[] many;
    delete calm;
}

struct Counted {
    static int alive;
    std::string name{"a string that is too long for the small buffer of std::string"};
    Counted() { alive++; }
    ~Counted() { alive--; }
};
int Counted::alive = 0;

struct Thrower {
    char space[500];
    static int countdown;
    Thrower() { if (countdown-- == 0) throw std::string("thrown from a constructor"); }
};
int Thrower::countdown;

int main() {
    using std::align_val_t;
    for (size_t size : {size_t(0), size_t(1), size_t(8), size_t(63), size_t(128), size_t(1000), KIB(8), KIB(33), MIB(1), MIB(5)}) {
        for (int round = 0; round < 3; round++) {
            // Called as functions: each pairing that the language allows.
            ::operator delete(::operator new(size));
            ::operator delete(::operator new(size), size);
            ::operator delete(::operator new(size, std::nothrow), std::nothrow);
            ::operator delete[](::operator new[](size));
            ::operator delete[](::operator new[](size), size);
            ::operator delete[](::operator new[](size, std::nothrow), std::nothrow);
            for (size_t alignment = 1; alignment <= MIB(4); alignment *= 2) {
                align_val_t a{alignment};
                void *p = ::operator new(size, a), *q = ::operator new[](size, a);
                void *r = ::operator new(size, a, std::nothrow), *s = ::operator new[](size, a, std::nothrow);
                void *t = ::operator new(size, a), *u = ::operator new[](size, a);
                for (void *each : {p, q, r, s, t, u}) {
                    CHECK(each && (uintptr_t)each % alignment == 0, "new(%zu, align %zu) gave %p", size, alignment, each);
                    memset(each, 1, size);
                }
                ::operator delete(p, a);
                ::operator delete[](q, a);
                ::operator delete(r, a, std::nothrow);
                ::operator delete[](s, a, std::nothrow);
                ::operator delete(t, size, a);
                ::operator delete[](u, size, a);
            }
            // Unique, also when nothing is asked for.
            void *x = ::operator new(size), *y = ::operator new(size);
            CHECK(x != y && x && y, "two objects at one place");
            ::operator delete(x);
            ::operator delete(y);
        }
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr, size_t(10));
    ::operator delete(nullptr, align_val_t{64});
    expression<16>();
    expression<32>();
    expression<64>();
    expression<128>();
    expression<4096>();
    expression<65536>();

    {
        std::unique_ptr<Counted[]> array(new Counted[100]);
        std::vector<std::shared_ptr<Counted>> shared;
        for (int i = 0; i < 1000; i++) shared.push_back(std::make_shared<Counted>());
        CHECK(Counted::alive == 1100, "%d alive", Counted::alive);
    }
    CHECK(Counted::alive == 0, "%d alive", Counted::alive);

    // An exception out of the constructor: new[] frees what it had, and the exception itself is on the heap.
    for (int round = 0; round < 2000; round++) {
        Thrower::countdown = round % 50;
        bool caught = false;
        try {
            delete[] new Thrower[51];
        } catch (const std::string &text) {
            caught = text == "thrown from a constructor";
        }
        CHECK(caught, "the exception did not arrive");
    }
    return 0;
}

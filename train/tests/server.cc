// A small server whose objects' lifetimes depend on the function that allocates them: parsed requests die at once,
// objects of a batch live for a quarter of a second, sessions for some seconds, the registry for ever. Helpers are
// shared, so the calling context decides and the innermost function does not.
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#define FUNCTION __attribute__((noinline, noclone))
using Clock = std::chrono::steady_clock;

namespace text {
FUNCTION std::string repeat(char letter, size_t count) { return std::string(count, letter); }
FUNCTION std::vector<std::string> split(size_t parts) {
    std::vector<std::string> found;
    for (size_t i = 0; i < parts; i++) found.push_back(repeat('a' + i % 26, 40 + i));
    return found;
}
}  // namespace text

struct Record {
    std::vector<std::string> fields;
    std::map<int, std::string> index;
    std::unique_ptr<int[]> numbers;
};

template <int Kind> struct Parser {
    FUNCTION static Record header(int seed) {
        Record record;
        record.fields = text::split(4 + Kind % 5);
        record.numbers.reset(new int[64 + Kind]);
        record.numbers[0] = seed;
        return record;
    }
    FUNCTION static Record body(int seed) {
        Record record = header(seed);
        for (int i = 0; i < 6; i++) record.index[i] = text::repeat('x', 50 + Kind);
        return record;
    }
};

template <int Kind> struct Holder {
    static std::deque<std::pair<Clock::time_point, Record>> kept;
    FUNCTION static void hold(int seed) { kept.emplace_back(Clock::now(), Parser<Kind>::body(seed)); }
    FUNCTION static void drop(std::chrono::milliseconds age) {
        while (!kept.empty() && Clock::now() - kept.front().first > age) kept.pop_front();
    }
};
template <int Kind> std::deque<std::pair<Clock::time_point, Record>> Holder<Kind>::kept;

template <int Kind> struct Service {
    FUNCTION static void request(int seed) { (void)Parser<Kind>::body(seed); }
    FUNCTION static void batch(int seed) { Holder<Kind>::hold(seed); }
    FUNCTION static void session(int seed) { Holder<Kind + 100>::hold(seed); }
    FUNCTION static void enroll(int seed) { Holder<Kind + 200>::hold(seed); }
    FUNCTION static void round(int seed) {
        for (int i = 0; i < 20; i++) request(seed + i);
        batch(seed);
        if (seed % 4 == 0) session(seed);
        if (seed % 8 == 0) enroll(seed);
        Holder<Kind>::drop(std::chrono::milliseconds(250));
        Holder<Kind + 100>::drop(std::chrono::milliseconds(2500));
    }
};

template <int... Kinds> FUNCTION void serve(Clock::time_point end) {
    for (int seed = 0; Clock::now() < end; seed++) {
        (Service<Kinds>::round(seed), ...);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

int main(int, char** arguments) {
    serve<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(Clock::now() + std::chrono::seconds(std::stoi(arguments[1])));
    // Objects alive at the end are never freed.
    _Exit(0);
}

// The standard containers, filled and emptied: operators new and delete of every kind end in the shim.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

struct alignas(64) Wide {
    char bytes[192];
};

static void work(unsigned seed) {
    std::map<int, std::string> ordered;
    std::unordered_map<std::string, std::unique_ptr<std::list<int>>> hashed;
    for (int i = 0; i < 30000; i++) {
        seed = seed * 1103515245 + 12345;
        int key = seed >> 16 & 4095;
        ordered[key] += std::to_string(i);
        if (ordered[key].size() > 700) ordered.erase(key);
        auto &list = hashed["name " + std::to_string(key)];
        if (!list) list = std::make_unique<std::list<int>>();
        list->push_back(i);
        if (list->size() > 9) hashed.erase("name " + std::to_string(key));
    }
    std::vector<std::unique_ptr<Wide>> wide;
    for (int i = 0; i < 500; i++) {
        wide.push_back(std::make_unique<Wide>());
        if (reinterpret_cast<uintptr_t>(wide.back().get()) % 64) std::abort();
    }
}

int main() {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 3; i++) threads.emplace_back(work, i);
    for (auto &thread : threads) thread.join();
    std::cout << "well\n";
}

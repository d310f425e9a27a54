// The standard library's containers and std::pmr over the heap: contents against what they must be.
#include "check.h"
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory_resource>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

static void use(std::pmr::memory_resource *resource) {
    std::pmr::map<int, std::pmr::string> names(resource);
    std::pmr::unordered_map<std::pmr::string, std::pmr::vector<int>> lists(resource);
    std::pmr::list<std::pmr::deque<long>> queues(resource);
    for (int i = 0; i < 20000; i++) {
        names[i % 5000] = std::pmr::string(size_t(i % 300), char('a' + i % 26), resource);
        lists[std::pmr::string("key " + std::to_string(i % 700), resource)].push_back(i);
        if (i % 100 == 0) queues.emplace_back();
        queues.back().push_front(i);
        if (i % 3 == 0) names.erase(i / 2 % 5000);
    }
    for (auto &[key, name] : names) CHECK(name.empty() || name.front() == name.back(), "name %d", key);
    long sum = 0;
    for (auto &[key, list] : lists) sum += std::accumulate(list.begin(), list.end(), 0L);
    CHECK(sum == 19999L * 20000 / 2, "sum of lists is %ld", sum);
    sum = 0;
    for (auto &queue : queues) sum += std::accumulate(queue.begin(), queue.end(), 0L);
    CHECK(sum == 19999L * 20000 / 2, "sum of queues is %ld", sum);
    void *aligned = resource->allocate(5000, 1024);
    CHECK((uintptr_t)aligned % 1024 == 0, "pmr gave %p for alignment 1024", aligned);
    resource->deallocate(aligned, 5000, 1024);
}

int main() {
    for (int round = 0; round < 3; round++) {
        use(std::pmr::new_delete_resource());
        std::pmr::unsynchronized_pool_resource pool;
        use(&pool);
        std::pmr::synchronized_pool_resource shared;
        use(&shared);
        std::pmr::monotonic_buffer_resource buffer;
        use(&buffer);
    }
    std::regex pattern("([a-z]+)-([0-9]+)");
    std::string text, found;
    for (int i = 0; i < 2000; i++) text += "word-" + std::to_string(i) + " ";
    int matches = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it, matches++)
        CHECK((*it)[2] == std::to_string(matches), "match %d is %s", matches, it->str().c_str());
    CHECK(matches == 2000, "%d matches", matches);
    std::function<int(int)> chain = [](int x) { return x; };
    for (int i = 0; i < 500; i++) chain = [chain, i](int x) { return chain(x) + i; };
    CHECK(chain(1) == 1 + 499 * 500 / 2, "a chain of closures");
    std::ostringstream stream;
    for (int i = 0; i < 50000; i++) stream << i << ' ';
    CHECK(stream.str().size() == 288890, "stream of %zu bytes", stream.str().size());
    return 0;
}

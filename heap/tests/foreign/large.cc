// Takes the compiler several hundred MiB with -DCLASSES=80: many instances of templates over the standard library.
#include <algorithm>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

template <int N> struct Tower { static constexpr unsigned long value = Tower<N - 1>::value * 31 + N; };
template <> struct Tower<0> { static constexpr unsigned long value = 1; };

template <int N> struct Item {
    std::string name;
    std::map<int, std::vector<std::string>> lists;
    unsigned long weight = Tower<200 + N>::value;
};

template <int N> long use(const std::string &text) {
    std::vector<std::tuple<int, std::string, std::shared_ptr<Item<N>>>> items;
    for (int k = 0; k < N + 3; k++) items.emplace_back(k, text, std::make_shared<Item<N>>());
    std::sort(items.begin(), items.end(), [](auto &a, auto &b) { return std::get<0>(a) > std::get<0>(b); });
    std::map<std::string, std::tuple<unsigned long, Item<N>>> index;
    for (auto &[k, name, item] : items) {
        item->lists[k].push_back(name);
        index[name + std::to_string(k)] = {item->weight, *item};
    }
    return std::regex_match(text, std::regex("[a-z]+" + std::to_string(N))) + (long)index.size();
}

template <int... N> long use_all(std::integer_sequence<int, N...>) { return (use<N>("abc" + std::to_string(N)) + ...); }

int main() { return use_all(std::make_integer_sequence<int, CLASSES>()) > 0 ? 0 : 1; }

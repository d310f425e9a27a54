// User mentions, after DeathStarBench's UserMentionService made function-like: the users that a call's posts mention are
// looked up at its beginning, as functions do (§5): in the cache by one multi-get, those that it lacks in the database.
// The mentions go out with their numbers.
// user_mentions POSTS
#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "../c/measured.h"
#include "backend.h"

struct UserMention {
    std::string username;
    int64_t user_id;
};

// "get NAME NAME ..." answers "NAME=ID,..." for the names that the cache has (two of three), "find NAME NAME ..." the
// database's.
static size_t look_up(const char *line, size_t length, char *answer) {
    const char *end = line + length, *word = static_cast<const char *>(memchr(line, ' ', length));
    bool cached = line[0] == 'g';
    size_t filled = 0;
    while (word && word < end) {
        const char *start = word + 1, *stop = static_cast<const char *>(memchr(start, ' ', static_cast<size_t>(end - start)));
        if (!stop) stop = end;
        unsigned number = 0;
        for (const char *c = start; c < stop; c++)
            if (*c >= '0' && *c <= '9') number = number * 10 + static_cast<unsigned>(*c - '0');
        if (!cached || number % 3 != 0) {
            memcpy(answer + filled, start, static_cast<size_t>(stop - start));
            filled += static_cast<size_t>(stop - start);
            filled += static_cast<size_t>(sprintf(answer + filled, "=%u,", number * 7 + 1));
        }
        word = stop < end ? stop : nullptr;
    }
    return filled;
}

class UserMentions {
public:
    explicit UserMentions(Backend &backend) : backend_(backend) {}

    void fetch(const std::vector<std::string> &texts) {
        std::set<std::string> names;
        for (const auto &text : texts) names.merge(names_in(text));
        found_.clear();
        for (const char *command : {"get", "find"}) {
            std::string request = command;
            for (const auto &name : names)
                if (!found_.count(name)) request += " " + name;
            if (request != command) collect(backend_.call(request));
        }
    }

    std::vector<std::unique_ptr<UserMention>> compose(const std::string &text) {
        std::vector<std::unique_ptr<UserMention>> mentions;
        for (const auto &name : names_in(text))
            mentions.push_back(std::make_unique<UserMention>(UserMention{name, found_.at(name)}));
        std::sort(mentions.begin(), mentions.end(), [](const auto &a, const auto &b) { return a->user_id < b->user_id; });
        return mentions;
    }

private:
    static std::set<std::string> names_in(const std::string &text) {
        std::set<std::string> names;
        std::istringstream words(text);
        for (std::string word; words >> word;)
            if (word[0] == '@') {
                while (!isalnum(static_cast<unsigned char>(word.back()))) word.pop_back();
                names.insert(word.substr(1));
            }
        return names;
    }

    void collect(const std::string &answer) {
        std::istringstream pairs(answer);
        for (std::string pair; std::getline(pairs, pair, ',');) {
            size_t equals = pair.find('=');
            found_[pair.substr(0, equals)] = std::stoll(pair.substr(equals + 1));
        }
    }

    Backend &backend_;
    std::unordered_map<std::string, int64_t> found_;
};

int main(int argc, char **argv) {
    uint64_t posts = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000, digest = 0, many = 0;
    Backend backend(look_up);
    UserMentions service(backend);
    Posts texts;
    std::vector<std::string> call;
    // The first half of the posts is the first call, the other half a warm one.
    warming();
    for (uint64_t id = 0; id < posts; id++) {
        if (id == posts / 2) measured();
        if (id % POSTS_OF_A_CALL == 0) {
            call.clear();
            while (call.size() < std::min(POSTS_OF_A_CALL, posts - id)) call.push_back(texts.next());
            service.fetch(call);
        }
        std::ostringstream response;
        response << "{\"req_id\":" << id << ",\"user_mentions\":[";
        for (const auto &mention : service.compose(call[id % POSTS_OF_A_CALL])) {
            response << "{\"user_id\":" << mention->user_id << ",\"username\":\"" << mention->username << "\"},";
            many++;
        }
        digest = mixed(digest, response.str() + "]}");
    }
    finished();
    std::cout << "user_mentions: " << posts << " posts, " << many << " mentions, digest " << std::hex << digest << "\n";
}

// URL shortening, after DeathStarBench's UrlShortenService made function-like: a post comes in as JSON; its URLs are
// found, each gets a short name, and the text goes out with the short ones. A call takes some posts, and stores its pairs
// with the backend at its end, as functions do (§5).
// url_shorten POSTS
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "../c/measured.h"
#include "backend.h"

struct Url {
    std::string shortened, expanded;
};

// "set SHORT URL" for each, separated by ';': how many were new.
static size_t store(const char *line, size_t length, char *answer) {
    size_t many = length > 0;
    for (size_t i = 0; i < length; i++) many += line[i] == ';';
    return static_cast<size_t>(sprintf(answer, "stored %zu", many));
}

// The request as the front end would send it, and its fields.
static std::string request_of(uint64_t id, const std::string &text) {
    std::ostringstream request;
    request << "{\"req_id\":" << id << ",\"carrier\":{\"span\":\"" << std::hex << id * 2654435761u << "\"},\"text\":\"" << text << "\"}";
    return request.str();
}

static std::map<std::string, std::string> parse(const std::string &request) {
    std::map<std::string, std::string> fields;
    for (size_t at = request.find('"'); at != std::string::npos;) {
        size_t end = request.find('"', at + 1);
        std::string name = request.substr(at + 1, end - at - 1), value;
        size_t start = end + 2;
        if (request[start] == '"') {
            end = request.find('"', start + 1);
            value = request.substr(start + 1, end - start - 1);
        } else if (request[start] == '{') {
            end = request.find('}', start);
            value = request.substr(start, end - start + 1);
        } else {
            end = request.find_first_of(",}", start);
            value = request.substr(start, end - start);
        }
        fields.emplace(std::move(name), std::move(value));
        at = request.find('"', end + 1);
    }
    return fields;
}

class UrlShorten {
public:
    explicit UrlShorten(Backend &backend) : backend_(backend) {}

    std::string compose(const std::string &request) {
        auto fields = parse(request);
        size_t before = urls_.size();
        std::string text;
        std::istringstream words(fields.at("text"));
        for (std::string word; words >> word;) {
            if (!text.empty()) text += ' ';
            if (word.compare(0, 7, "http://") == 0) {
                auto url = std::make_unique<Url>();
                url->expanded = word;
                url->shortened = "http://short-url/" + random_name(10);
                text += url->shortened;
                urls_.push_back(std::move(url));
            } else {
                text += word;
            }
        }
        return "{\"req_id\":" + fields.at("req_id") + ",\"text\":\"" + text + "\",\"urls\":" +
               std::to_string(urls_.size() - before) + "}";
    }

    void store_all() {
        if (urls_.empty()) return;
        std::vector<std::string> commands;
        for (const auto &url : urls_) commands.push_back("set " + url->shortened + " " + url->expanded);
        std::string request;
        for (const auto &command : commands) request += (request.empty() ? "" : ";") + command;
        if (backend_.call(request) != "stored " + std::to_string(urls_.size())) throw std::runtime_error("not stored");
        urls_.clear();
    }

private:
    std::string random_name(int length) {
        std::string name;
        for (int i = 0; i < length; i++) name += "0123456789abcdefghijklmnopqrstuvwxyz"[names_.number(36)];
        return name;
    }

    Backend &backend_;
    std::vector<std::unique_ptr<Url>> urls_;
    Posts names_;
};

int main(int argc, char **argv) {
    uint64_t posts = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000, digest = 0;
    Backend backend(store);
    UrlShorten service(backend);
    Posts texts;
    const auto serve = [&](uint64_t from, uint64_t to) {
        for (uint64_t id = from; id < to; id++) {
            digest = mixed(digest, service.compose(request_of(id, texts.next())));
            if ((id + 1) % POSTS_OF_A_CALL == 0 || id + 1 == to) service.store_all();
        }
    };
    // The first half of the posts is the first call, the other half a warm one.
    warming();
    serve(0, posts / 2);
    measured();
    serve(posts / 2, posts);
    finished();
    std::cout << "url_shorten: " << posts << " posts, digest " << std::hex << digest << "\n";
}

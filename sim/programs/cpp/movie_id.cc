// Movies by their titles, as DeathStarBench's MovieIdService has it, made function-like: the movies of a call's reviews are
// looked up at its beginning, as functions do (§5), in the cache by one multi-get, and those that it lacks in the database,
// which answers in BSON. Each review's movie is sent on to the services that compose the review and keep its rating, by
// Thrift, at the call's end.
// movie_id REVIEWS
#include <bson/bson.h>
#include <set>
#include <unordered_map>
#include <utility>

#include "gen/ComposeReviewService.h"
#include "gen/MovieIdService.h"
#include "gen/RatingService.h"
#include "requests.h"

// "g" and titles, a line each, answers "TITLE=ID" lines for those that the cache has (two of three). "f" and a BSON query
// answers the database's document. Anything else is stored.
static size_t look_up(const char *request, size_t length, char *answer) {
    if (request[0] == 'f') {
        unsigned number = 0;
        for (const char *c = request + 1; c < request + length; c++)
            if (*c >= '0' && *c <= '9') number = number * 10 + static_cast<unsigned>(*c - '0');
        // {movie_id: "..."}: length, a string's type, its name, its length, its bytes, the end.
        char *at = answer + 4 + sprintf(answer + 4, "\x02movie_id") + 1;
        uint32_t text = static_cast<uint32_t>(sprintf(at + 4, "tt%07u", number * 7 % 10000000)) + 1;
        memcpy(at, &text, sizeof text);
        at += 4 + text;
        *at++ = 0;
        uint32_t whole = static_cast<uint32_t>(at - answer);
        memcpy(answer, &whole, sizeof whole);
        return whole;
    }
    if (request[0] != 'g') return static_cast<size_t>(sprintf(answer, "stored %zu", length));
    size_t filled = 0;
    for (const char *start = request + 1, *end = request + length; start < end;) {
        const char *stop = static_cast<const char *>(memchr(start, '\n', static_cast<size_t>(end - start)));
        unsigned number = 0;
        for (const char *c = start; c < stop; c++)
            if (*c >= '0' && *c <= '9') number = number * 10 + static_cast<unsigned>(*c - '0');
        if (number % 3 != 0)
            filled += static_cast<size_t>(
                sprintf(answer + filled, "%.*s=tt%07u\n", static_cast<int>(stop - start), start, number * 7 % 10000000));
        start = stop + 1;
    }
    return filled;
}

class Handler : public services::MovieIdServiceIf {
public:
    explicit Handler(Backend &backend) : backend_(backend) {}

    void fetch(const std::set<std::string> &titles) {
        ids_.clear();
        std::string request = "g";
        for (const auto &title : titles) request += title + "\n";
        std::string answer = backend_.call(request);
        for (size_t at = 0, end; (end = answer.find('\n', at)) != std::string::npos; at = end + 1) {
            size_t equals = answer.find('=', at);
            ids_[answer.substr(at, equals - at)] = answer.substr(equals + 1, end - equals - 1);
        }
        for (const auto &title : titles)
            if (!ids_.count(title)) ids_[title] = in_database(title);
    }

    void UploadMovieId(int64_t req_id, const std::string &title, int32_t rating, const Carrier &carrier) override {
        auto span = child_of(carrier, "upload_movie_id_server");
        const std::string &movie_id = ids_.at(title);
        sent_ += bytes_of<services::ComposeReviewServiceClient>(
            [&](auto &client) { client.send_UploadMovieId(req_id, movie_id, span); });
        sent_ += bytes_of<services::RatingServiceClient>(
            [&](auto &client) { client.send_UploadRating(req_id, movie_id, rating, span); });
    }

    // The requests to the other services.
    std::string send() {
        if (backend_.call(sent_) != "stored " + std::to_string(sent_.size())) throw std::runtime_error("not stored");
        return std::exchange(sent_, {});
    }

private:
    std::string in_database(const std::string &title) {
        bson_t *query = bson_new();
        BSON_APPEND_UTF8(query, "title", title.c_str());
        std::string request("f");
        request.append(reinterpret_cast<const char *>(bson_get_data(query)), query->len);
        bson_destroy(query);
        std::string answer = backend_.call(request);
        bson_t *found = bson_new_from_data(reinterpret_cast<const uint8_t *>(answer.data()), answer.size());
        bson_iter_t at;
        if (!found || !bson_iter_init_find(&at, found, "movie_id")) throw std::runtime_error("no such movie");
        std::string movie_id = bson_iter_utf8(&at, nullptr);
        bson_destroy(found);
        return movie_id;
    }

    Backend &backend_;
    std::unordered_map<std::string, std::string> ids_;
    std::string sent_;
};

int main(int argc, char **argv) {
    uint64_t reviews = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000, digest = 0;
    Backend backend(look_up);
    Posts numbers;
    std::vector<std::string> titles, requests;
    for (uint64_t id = 0; id < reviews; id++) {
        titles.push_back("A Film with a Long Name, Part " + std::to_string(numbers.number(400)));
        int32_t rating = static_cast<int32_t>(numbers.number(11));
        requests.push_back(bytes_of<services::MovieIdServiceClient>(
            [&](auto &client) { client.send_UploadMovieId(static_cast<int64_t>(id), titles[id], rating, carrier_of(id)); }));
    }
    auto handler = std::make_shared<Handler>(backend);
    services::MovieIdServiceProcessor processor(handler);
    serve_all(
        reviews,
        [&](uint64_t from, uint64_t to) {
            handler->fetch({titles.begin() + static_cast<long>(from), titles.begin() + static_cast<long>(to)});
        },
        [&](uint64_t id) { digest = mixed(digest, answered(processor, requests[id])); },
        [&] { digest = mixed(digest, handler->send()); });
    std::cout << "movie_id: " << reviews << " reviews, digest " << std::hex << digest << "\n";
}

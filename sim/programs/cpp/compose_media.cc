// Composing media, as DeathStarBench's MediaService does, made function-like: the media of a post's request go into its answer.
// A call takes some posts, and stores its media with the backend at its end, as functions do (§5).
// compose_media POSTS
#include "gen/MediaService.h"
#include "requests.h"

class Handler : public services::MediaServiceIf {
public:
    void ComposeMedia(std::vector<services::Media> &composed, int64_t, const std::vector<std::string> &media_types,
                      const std::vector<int64_t> &media_ids, const Carrier &carrier) override {
        auto span = child_of(carrier, "compose_media_server");
        if (media_types.size() != media_ids.size()) {
            services::ServiceException wrong;
            wrong.message = "The lengths of media_id list and media_type list are not equal";
            throw wrong;
        }
        for (size_t i = 0; i < media_ids.size(); i++) {
            services::Media media;
            media.media_id = media_ids[i];
            media.media_type = media_types[i];
            composed.emplace_back(media);
        }
    }
};

static size_t store(const char *, size_t length, char *answer) { return static_cast<size_t>(sprintf(answer, "stored %zu", length)); }

int main(int argc, char **argv) {
    uint64_t posts = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000, digest = 0, many = 0;
    Backend backend(store);
    Posts numbers;
    std::vector<std::string> requests;
    for (uint64_t id = 0; id < posts; id++) {
        std::vector<std::string> types;
        std::vector<int64_t> ids;
        for (unsigned left = 1 + numbers.number(4); left > 0; left--) {
            types.push_back(numbers.number(3) ? "png" : "application/vnd.mp4");
            ids.push_back(numbers.number(1000000));
        }
        many += ids.size();
        requests.push_back(bytes_of<services::MediaServiceClient>(
            [&](auto &client) { client.send_ComposeMedia(static_cast<int64_t>(id), types, ids, carrier_of(id)); }));
    }
    services::MediaServiceProcessor processor(std::make_shared<Handler>());
    std::string composed;
    serve_all(
        posts, [&](uint64_t, uint64_t) { composed.clear(); },
        [&](uint64_t id) {
            std::string answer = answered(processor, requests[id]);
            digest = mixed(digest, answer);
            composed += answer;
        },
        [&] {
            if (backend.call(composed) != "stored " + std::to_string(composed.size())) throw std::runtime_error("not stored");
        });
    std::cout << "compose_media: " << posts << " posts, " << many << " media, digest " << std::hex << digest << "\n";
}

// An inference server on OpenCV's DNN engine: images in, a network's scores out, in batches. It represents TensorFlow
// Serving with InceptionV3 (LLAMA §9); the network is open_nsfw, a thin ResNet-50.
//
//   inference_server SOCKET NETWORK.onnx [WORKERS]
//
// A request is one image, or several with one answer together (field `count`), 224 x 224 pixels of three bytes.
// Every worker has an instance of the network; the field `version` requests another version of the model, which is
// loaded while the old one serves, as in TensorFlow Serving. A request's tensors live for its time, results stay in a
// cache until it is full, models until they are replaced, accounts and statistics for good.
#include "service.h"

#include <list>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/dnn.hpp>
#include <set>
#include <sstream>
#include <unordered_map>

using service::Message;

// Named: the names of an unnamed one's functions are not whole in debug information, and the model learns from names.
namespace inference {

const int side = 224;
const size_t image_bytes = size_t(side) * side * 3;

struct Scores {
    float safe, unsafe;
};

// A version of the model: its description, and the instances that are not in use.
class Model {
    std::mutex mutex;
    std::condition_variable returned;
    std::vector<std::unique_ptr<cv::dnn::Net>> idle;

  public:
    const int version;
    std::map<std::string, std::string> layers;

    Model(const std::string &path, int version, int instances) : version(version) {
        for (int i = 0; i < instances; i++) {
            auto net = std::make_unique<cv::dnn::Net>(cv::dnn::readNetFromONNX(path));
            net->setPreferableBackend(cv::dnn::DNN_BACKEND_OPENCV);
            idle.push_back(std::move(net));
        }
        for (auto &name : idle.front()->getLayerNames()) {
            auto layer = idle.front()->getLayer(idle.front()->getLayerId(name));
            layers[name] = layer->type + " with " + std::to_string(layer->blobs.size()) + " blobs, version " + std::to_string(version);
        }
    }

    std::vector<Scores> infer(const cv::Mat &batch) {
        std::unique_ptr<cv::dnn::Net> net;
        {
            std::unique_lock lock(mutex);
            returned.wait(lock, [&] { return !idle.empty(); });
            net = std::move(idle.back());
            idle.pop_back();
        }
        net->setInput(batch);
        cv::Mat out = net->forward();
        std::vector<Scores> scores;
        for (int i = 0; i < out.size[0]; i++) scores.push_back({out.at<float>(i, 0), out.at<float>(i, 1)});
        std::lock_guard lock(mutex);
        idle.push_back(std::move(net));
        returned.notify_one();
        return scores;
    }
};

class Models {
    std::mutex mutex, loading;
    std::shared_ptr<Model> current;
    std::string path;
    int instances;

  public:
    Models(std::string path, int instances) : current(std::make_shared<Model>(path, 0, instances)), path(std::move(path)), instances(instances) {}

    std::shared_ptr<Model> serving(int version) {
        {
            std::lock_guard lock(mutex);
            if (version <= current->version) return current;
        }
        std::lock_guard one_at_a_time(loading);
        {
            std::lock_guard lock(mutex);
            if (version <= current->version) return current;
        }
        auto fresh = std::make_shared<Model>(path, version, instances);
        std::lock_guard lock(mutex);
        return current = std::move(fresh);
    }
};

// The last results, with the data that explain them.
class Cache {
    static constexpr size_t most = 1500;
    struct Result {
        std::string session;
        Scores scores;
        std::vector<uint8_t> picture; // a small copy of the image
    };
    std::mutex mutex;
    std::list<std::pair<uint64_t, std::unique_ptr<Result>>> by_age;
    std::unordered_map<uint64_t, decltype(by_age)::iterator> by_number;

  public:
    void add(uint64_t number, const std::string &session, Scores scores, const uint8_t *image) {
        auto result = std::make_unique<Result>(Result{session, scores, {}});
        for (int y = 0; y < side; y += 4)
            for (int x = 0; x < side; x += 4)
                for (int band = 0; band < 3; band++) result->picture.push_back(image[(y * side + x) * 3 + band]);
        std::lock_guard lock(mutex);
        by_age.emplace_front(number, std::move(result));
        by_number[number] = by_age.begin();
        if (by_age.size() > most) {
            by_number.erase(by_age.back().first);
            by_age.pop_back();
        }
    }
};

// Each client's requests, for its bill.
class Accounts {
    struct Account {
        uint64_t images = 0;
        std::map<std::string, uint64_t> by_day_and_model;
        std::vector<std::string> invoices;
    };
    std::mutex mutex;
    std::unordered_map<std::string, std::unique_ptr<Account>> accounts;

  public:
    void charge(const std::string &session, int version, int images, uint64_t number) {
        std::lock_guard lock(mutex);
        auto &account = accounts[session];
        if (!account) account = std::make_unique<Account>();
        account->images += uint64_t(images);
        account->by_day_and_model["day " + std::to_string(number / 40) + ", model " + std::to_string(version)] += uint64_t(images);
        account->invoices.push_back("request " + std::to_string(number) + ": " + std::to_string(images) + " images by model " +
                                    std::to_string(version));
    }
};

// Counts by name, for monitoring: never freed.
class Statistics {
    std::mutex mutex;
    std::map<std::string, std::map<int, uint64_t>> counts;

  public:
    void add(const std::string &name, int value) {
        std::lock_guard lock(mutex);
        counts[name][value]++;
    }
};

// Never destroyed: objects that a server holds at its end are never freed.
Cache &cache = *new Cache;
Accounts &accounts = *new Accounts;
Statistics &statistics = *new Statistics;
Models *models;

// The pixels in the network's form: floats, blue green red, less the mean of its training data.
cv::Mat tensor_of(const uint8_t *images, int count) {
    int sizes[] = {count, side, side, 3};
    cv::Mat tensor(4, sizes, CV_32F);
    const float mean[] = {104, 117, 123};
    float *out = tensor.ptr<float>();
    for (size_t i = 0; i < size_t(count) * image_bytes; i++) out[i] = float(images[i]) - mean[i % 3];
    return tensor;
}

Message handle(const Message &request) {
    int count = request.number("count");
    uint64_t number = std::stoull(request.text("number"));
    if (count < 1 || size_t(count) * image_bytes != request.body.size()) throw std::runtime_error("count does not fit the body");
    auto *images = reinterpret_cast<const uint8_t *>(request.body.data());
    auto model = models->serving(request.number("version"));
    uint64_t start = bench::now_ns();
    std::vector<Scores> scores = model->infer(tensor_of(images, count));
    statistics.add("model " + std::to_string(model->version) + " batches of " + std::to_string(count), int((bench::now_ns() - start) / 1000000));
    std::ostringstream text;
    for (int i = 0; i < count; i++) {
        cache.add(number * 64 + uint64_t(i), request.text("session"), scores[size_t(i)], images + size_t(i) * image_bytes);
        text << scores[size_t(i)].safe << ' ' << scores[size_t(i)].unsafe << '\n';
    }
    accounts.charge(request.text("session"), model->version, count, number);
    Message answer;
    answer.fields["status"] = "ok";
    answer.body = text.str();
    return answer;
}

} // namespace inference

using namespace inference;

int main(int argc, char **argv) {
    if (argc < 3) bench::fail("usage: inference_server SOCKET NETWORK.onnx [WORKERS]");
    service::Service::block_signals();
    cv::setNumThreads(1); // requests run side by side, not the layers of one
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_ERROR);
    int workers = argc > 3 ? atoi(argv[3]) : 4;
    try {
        models = new Models(argv[2], 2);
    } catch (const cv::Exception &error) {
        bench::fail("%s: cannot be loaded: %s", argv[2], error.what());
    }
    service::Service().run(argv[1], workers, handle);
}

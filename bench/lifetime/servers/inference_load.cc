// The load for inference_server: batches of one to sixteen images in shifting phases, new versions of the model in
// between, every score compared with the same network's score here, image by image.
//
//   inference_load SOCKET SEED SCALE NETWORK.onnx [CONNECTIONS]
#include "load.h"

#include <cmath>
#include <opencv2/core/utils/logger.hpp>
#include <opencv2/dnn.hpp>
#include <sstream>

using service::Message;

namespace {

const int side = 224, pictures = 8;
std::vector<std::string> images;
std::vector<std::pair<float, float>> expected;

// Blobs of colour on a gradient: unlike enough that their scores differ.
std::string picture(bench::Random &random) {
    std::string pixels(size_t(side) * side * 3, 0);
    uint64_t tint = random.next();
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++)
            for (int band = 0; band < 3; band++) pixels[size_t((y * side + x) * 3 + band)] = char((x + y + int(tint >> band * 8 & 255)) / 3);
    for (int blob = 0; blob < 12; blob++) {
        int cx = int(random.below(side)), cy = int(random.below(side)), radius = int(8 + random.below(50));
        uint64_t colour = random.next();
        for (int y = std::max(0, cy - radius); y < std::min(side, cy + radius); y++)
            for (int x = std::max(0, cx - radius); x < std::min(side, cx + radius); x++)
                if ((x - cx) * (x - cx) + (y - cy) * (y - cy) < radius * radius)
                    for (int band = 0; band < 3; band++) pixels[size_t((y * side + x) * 3 + band)] = char(colour >> band * 8);
    }
    return pixels;
}

void compute_expected(const char *network) {
    auto net = cv::dnn::readNetFromONNX(network);
    const float mean[] = {104, 117, 123};
    for (auto &image : images) {
        int sizes[] = {1, side, side, 3};
        cv::Mat tensor(4, sizes, CV_32F);
        for (size_t i = 0; i < image.size(); i++) tensor.ptr<float>()[i] = float(uint8_t(image[i])) - mean[i % 3];
        net.setInput(tensor);
        cv::Mat out = net.forward();
        expected.emplace_back(out.at<float>(0, 0), out.at<float>(0, 1));
    }
    for (auto &[safe, unsafe] : expected)
        if (std::abs(safe + unsafe - 1) > 1e-3) bench::fail("%s: scores %f and %f are not probabilities", network, safe, unsafe);
}

void ask(load::Client &client, uint64_t seed, uint64_t number, int most, int version) {
    bench::Random random(seed + number);
    size_t count = 1 + random.below(uint64_t(most)), first = random.below(pictures);
    Message message;
    message.fields["session"] = "client-" + std::to_string(random.below(20 + number));
    message.fields["number"] = std::to_string(number);
    message.fields["count"] = std::to_string(count);
    message.fields["version"] = std::to_string(version);
    for (size_t i = 0; i < count; i++) message.body += images[(first + i) % pictures];
    std::istringstream answer(client.ask(message).body);
    for (size_t i = 0; i < count; i++) {
        float safe = NAN, unsafe = NAN;
        answer >> safe >> unsafe;
        auto &wanted = expected[(first + i) % pictures];
        if (!(std::abs(safe - wanted.first) < 1e-3 && std::abs(unsafe - wanted.second) < 1e-3))
            bench::fail("request %llu, image %zu: scores %f %f, not %f %f", (unsigned long long)number, i, safe, unsafe, wanted.first, wanted.second);
    }
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 5) bench::fail("usage: inference_load SOCKET SEED SCALE NETWORK.onnx [CONNECTIONS]");
    uint64_t seed = strtoull(argv[2], nullptr, 10) << 32;
    double scale = atof(argv[3]);
    cv::utils::logging::setLogLevel(cv::utils::logging::LOG_LEVEL_ERROR);
    cv::setNumThreads(1);
    bench::Random random(seed + 1);
    for (int i = 0; i < pictures; i++) images.push_back(picture(random));
    compute_expected(argv[4]);

    load::Load load(argv[1], argc > 5 ? atoi(argv[5]) : 8);
    int version = 0;
    auto phase = [&](const char *name, double count, int most) {
        load.run(name, uint64_t(std::max(1.0, count * scale)),
                 [&](load::Client &client, uint64_t number) { ask(client, seed, number, most, version); });
    };
    for (int round = 1; round <= 2; round++) {
        phase("single images", 40, 1);
        phase("batches", 10, 16);
        version++;
        phase("new model", 16, 4);
    }
    phase("single images", 30, 1);
    load::phase("settle");
    load::moment("end");
    load.report();
}

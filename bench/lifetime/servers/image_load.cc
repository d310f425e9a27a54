// The load for image_server: small and large images in shifting phases (LLAMA §2.1, Fig. 1), every answer checked.
//
//   image_load SOCKET SEED SCALE [CONNECTIONS]
//
// The images are gradients with a colour of their own, so that the result of an operation is known. The first answer of
// each kind is decoded and compared with it; later ones must have the same bytes.
#include "load.h"

#include <cmath>
#include <unordered_map>
#include <vips/vips8>

using service::Message;
using vips::VImage;

namespace {

// Red grows to the right and green downwards, from 0 to 255; blue is the image's own.
struct Picture {
    int width, height, blue;
    std::string jpeg;

    Picture(int width, int height, int blue) : width(width), height(height), blue(blue) {
        VImage place = VImage::xyz(width, height);
        VImage image = place.linear({255.0 / width, 255.0 / height}, {0.0, 0.0}).bandjoin(double(blue));
        VipsBlob *blob = image.cast(VIPS_FORMAT_UCHAR)
                             .copy(VImage::option()->set("interpretation", VIPS_INTERPRETATION_sRGB))
                             .jpegsave_buffer(VImage::option()->set("Q", 90));
        size_t length;
        auto *bytes = static_cast<const char *>(vips_blob_get(blob, &length));
        jpeg.assign(bytes, length);
        vips_area_unref(VIPS_AREA(blob));
    }
};

std::vector<Picture> small, medium, large;

// The pixel that the answer must have at a place given in parts of its width and height.
struct Expected {
    int width, height;
    struct Point {
        double x, y, red, green, blue;
    };
    std::vector<Point> points;
};

void compare(const std::string &jpeg, const Expected &expected, const std::string &what) {
    VipsBlob *blob = vips_blob_copy(jpeg.data(), jpeg.size());
    VImage image = VImage::jpegload_buffer(blob).copy_memory();
    vips_area_unref(VIPS_AREA(blob));
    if (image.width() != expected.width || image.height() != expected.height)
        bench::fail("%s: %d x %d pixels, not %d x %d", what.c_str(), image.width(), image.height(), expected.width, expected.height);
    for (auto &point : expected.points) {
        auto pixel = image.getpoint(int(point.x * image.width()), int(point.y * image.height()));
        double wanted[] = {point.red, point.green, point.blue};
        for (int band = 0; band < 3; band++)
            if (std::abs(pixel.at(band) - wanted[band]) > 14)
                bench::fail("%s: at %.2f, %.2f band %d is %.0f, not %.0f", what.c_str(), point.x, point.y, band, pixel[band], wanted[band]);
    }
}

// The first answer of each kind, by request.
std::mutex mutex;
std::unordered_map<std::string, std::string> seen;

void check(const std::string &asked, const std::string &answer, const Expected &expected) {
    {
        std::lock_guard lock(mutex);
        auto [found, is_new] = seen.try_emplace(asked, answer);
        if (!is_new) {
            if (found->second != answer) bench::fail("%s: another answer than the first time", asked.c_str());
            return;
        }
    }
    compare(answer, expected, asked);
}

// Members return, and the server keeps their sessions; one request in four is a guest's.
Message request(bench::Random &random, uint64_t number, const std::string &operation) {
    Message message;
    bool guest = random.below(4) == 0;
    message.fields["session"] = guest ? "guest-" + std::to_string(number) : "member-" + std::to_string(random.below(400 + number / 2));
    message.fields["op"] = operation;
    static const char *agents[] = {"phone", "tablet", "desktop", "crawler"};
    message.fields["agent"] = agents[random.below(4)];
    return message;
}

void ask_small(load::Client &client, uint64_t seed, uint64_t number) {
    bench::Random random(seed + number);
    auto &picture = small[random.below(small.size())];
    Message message = request(random, number, random.below(3) ? "thumbnail" : random.below(2) ? "invert" : "rotate");
    const std::string &operation = message.text("op");
    message.body = picture.jpeg;
    double blue = picture.blue;
    Expected expected{picture.width, picture.height, {}};
    if (operation == "thumbnail") {
        int width = int(32 + 16 * random.below(3));
        message.fields["width"] = std::to_string(width);
        expected = {width, int(std::lround(double(width) * picture.height / picture.width)), {{0.5, 0.5, 128, 128, blue}, {0.25, 0.75, 64, 191, blue}}};
    } else if (operation == "invert") {
        expected.points = {{0.5, 0.5, 127, 127, 255 - blue}, {0.25, 0.75, 191, 64, 255 - blue}};
    } else {
        // A quarter turn clockwise: right becomes down, and what was the bottom is left.
        expected = {picture.height, picture.width, {{0.5, 0.5, 128, 128, blue}, {0.25, 0.75, 191, 191, blue}}};
    }
    auto asked = operation + ":" + std::to_string(&picture - small.data()) + ":" + std::to_string(expected.width);
    check(asked, client.ask(message).body, expected);
}

void ask_sheet(load::Client &client, uint64_t seed, uint64_t number) {
    bench::Random random(seed + number);
    Message message = request(random, number, "sheet");
    // As many as a page of a catalogue shows; the first decides the others.
    const int across = 8, width = 96;
    size_t count = 48 + 16 * random.below(3), first = random.below(medium.size());
    Expected expected{across * width, int(count) / across * width, {}};
    std::string sizes;
    for (size_t i = 0; i < count; i++) {
        auto &picture = medium[(first + i) % medium.size()];
        sizes += (i ? "," : "") + std::to_string(picture.jpeg.size());
        message.body += picture.jpeg;
        double rows = double(count) / across;
        expected.points.push_back({(double(i % across) + 0.5) / across, (double(i / across) + 0.5) / rows, 128, 128, double(picture.blue)});
    }
    message.fields["sizes"] = sizes;
    message.fields["across"] = std::to_string(across);
    message.fields["width"] = std::to_string(width);
    check("sheet:" + std::to_string(first) + ":" + std::to_string(count), client.ask(message).body, expected);
}

void ask_large(load::Client &client, uint64_t seed, uint64_t number) {
    bench::Random random(seed + number);
    auto &picture = large[random.below(large.size())];
    Message message = request(random, number, random.below(2) ? "tiles" : "rotate");
    message.body = picture.jpeg;
    const std::string &operation = message.text("op");
    double blue = picture.blue;
    std::string asked = operation + ":large " + std::to_string(&picture - large.data());
    Expected expected{picture.height, picture.width, {{0.5, 0.5, 128, 128, blue}, {0.25, 0.75, 191, 191, blue}}};
    if (operation == "tiles") {
        const int width = 128, columns = picture.width / width, rows = picture.height / width;
        int tile = int(random.below(uint64_t(columns * rows)));
        message.fields["width"] = std::to_string(width);
        message.fields["tile"] = std::to_string(tile);
        asked += ":" + std::to_string(tile);
        double x = (tile % columns + 0.5) * width / picture.width, y = (tile / columns + 0.5) * width / picture.height;
        expected = {width, width, {{0.5, 0.5, 255 * x, 255 * y, blue}}};
    }
    check(asked, client.ask(message).body, expected);
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 4) bench::fail("usage: image_load SOCKET SEED SCALE [CONNECTIONS]");
    uint64_t seed = strtoull(argv[2], nullptr, 10) << 32;
    double scale = atof(argv[3]);
    if (VIPS_INIT(argv[0])) bench::fail("libvips does not start");
    bench::Random random(seed + 1);
    for (int i = 0; i < 12; i++) small.emplace_back(int(80 + random.below(80)), int(60 + random.below(60)), int(random.below(256)));
    for (int i = 0; i < 16; i++) medium.emplace_back(int(240 + random.below(160)), int(180 + random.below(120)), int(random.below(256)));
    for (int i = 0; i < 3; i++) large.emplace_back(int(1800 + random.below(600)), int(1400 + random.below(400)), int(random.below(256)));

    load::Load load(argv[1], argc > 4 ? atoi(argv[4]) : 16);
    auto scaled = [&](double count) { return uint64_t(std::max(1.0, count * scale)); };
    auto ask = [&](auto one) { return [=](load::Client &client, uint64_t number) { one(client, seed, number); }; };
    for (int round = 1; round <= 3; round++) {
        load.run("small", scaled(1200), ask(ask_small));
        load.run("sheets", scaled(48), ask(ask_sheet));
        load.run("large", scaled(16), ask(ask_large));
    }
    load.run("small", scaled(1200), ask(ask_small));
    load::phase("settle");
    load::moment("end");
    load.report();
}

// An image-processing server on libvips: filters and transforms images, and records each client's requests. It
// represents LLAMA's image processing server (§2.1, §9).
//
//   image_server SOCKET [WORKERS]
//
// A request names a session and an operation; its body is one JPEG image, or several ("sheet") whose sizes are in the
// field `sizes`. Requests allocate objects of many lifetimes: pixels for milliseconds, a trace of its steps
// until the log is written (1 s), a guest's session (3 s), the cluster's state until it changes (2 s), members'
// sessions and statistics for as long as the server runs.
#include "service.h"

#include <algorithm>
#include <list>
#include <set>
#include <sstream>
#include <unordered_map>
#include <vips/vips8>
#include <vips/vector.h>

using service::Message;
using vips::VImage;
using Clock = std::chrono::steady_clock;

// Named: the names of an unnamed one's functions are not whole in debug information, and the model learns from names.
namespace images {

// The steps of one request, with their times: kept until the log is written.
struct Trace {
    struct Step {
        std::string name, detail;
        double ms;
    };
    std::string session, operation;
    std::vector<Step> steps;
    Clock::time_point last = Clock::now();

    void step(const std::string &name, const std::string &detail) {
        auto now = Clock::now();
        steps.push_back({name, detail, std::chrono::duration<double, std::milli>(now - last).count()});
        last = now;
    }
};

// Finished traces; a thread of its own writes them once a second and keeps the last lines.
class Log {
    static constexpr size_t kept_lines = 2000;
    std::mutex mutex;
    std::vector<std::unique_ptr<Trace>> pending;
    std::deque<std::string> lines;

  public:
    void add(std::unique_ptr<Trace> trace) {
        std::lock_guard lock(mutex);
        pending.push_back(std::move(trace));
    }

    void write() {
        std::vector<std::unique_ptr<Trace>> batch;
        {
            std::lock_guard lock(mutex);
            batch.swap(pending);
        }
        for (auto &trace : batch) {
            std::ostringstream line;
            line << trace->session << ' ' << trace->operation;
            for (auto &step : trace->steps) line << ' ' << step.name << '(' << step.detail << ")=" << step.ms;
            lines.push_back(line.str());
            if (lines.size() > kept_lines) lines.pop_front();
        }
    }
};

// Counts and times by operation, size and program: never freed.
class Statistics {
    struct Histogram {
        std::map<int, uint64_t> by_ms;
        uint64_t count = 0;
    };
    std::mutex mutex;
    std::map<std::string, Histogram> histograms;

  public:
    void add(const std::string &operation, size_t bytes, const std::string &agent, double ms) {
        std::string name = "requests/" + operation + "/" + std::to_string(bytes >> 12) + "/" + agent;
        std::lock_guard lock(mutex);
        Histogram &histogram = histograms[name];
        histogram.by_ms[int(ms)]++;
        histogram.count++;
    }
};

// This server's view of the others: replaced as a whole with each update.
class Cluster {
    struct Peer {
        std::string name, address;
        std::map<std::string, double> load;
    };
    std::mutex mutex;
    std::shared_ptr<const std::vector<Peer>> peers = std::make_shared<std::vector<Peer>>();
    uint64_t version = 0;

  public:
    void refresh() {
        auto fresh = std::make_shared<std::vector<Peer>>();
        for (int i = 0; i < 200; i++) {
            Peer peer{"image-server-" + std::to_string(i) + ".cluster.example", "10.0." + std::to_string(i) + ".1", {}};
            for (const char *what : {"processor", "memory", "network", "queue"})
                peer.load[what] = double((version * 31 + i) % 100) / 100;
            fresh->push_back(std::move(peer));
        }
        std::lock_guard lock(mutex);
        peers = std::move(fresh);
        version++;
    }
    // The least loaded peer's name: the one that keeps the second copy of a result.
    std::string choose() {
        std::shared_ptr<const std::vector<Peer>> seen;
        {
            std::lock_guard lock(mutex);
            seen = peers;
        }
        auto less = [](const Peer &a, const Peer &b) { return a.load.at("queue") < b.load.at("queue"); };
        return seen->empty() ? "" : std::min_element(seen->begin(), seen->end(), less)->name;
    }
};

// A user's session: the requests, with a preview of each answer.
struct Session {
    struct Entry {
        std::string operation, title, copy_on;
        std::vector<char> preview;
    };
    std::list<Entry> history;
    std::set<std::string> tags;
    Clock::time_point last_used;
};

class Sessions {
    static constexpr size_t kept_entries = 40, preview_bytes = 6000;
    static constexpr std::chrono::seconds guests_stay{3};
    std::mutex mutex;
    std::unordered_map<std::string, std::unique_ptr<Session>> sessions;

  public:
    void remember(const Message &request, const std::string &title, const std::string &copy_on, const std::string &answer) {
        std::lock_guard lock(mutex);
        auto &session = sessions[request.text("session")];
        if (!session) session = std::make_unique<Session>();
        size_t bytes = std::min(answer.size(), preview_bytes);
        session->history.push_back({request.text("op"), title, copy_on, {answer.begin(), answer.begin() + long(bytes)}});
        if (session->history.size() > kept_entries) session->history.pop_front();
        session->tags.insert(request.text("op") + "/" + request.text("agent"));
        session->last_used = Clock::now();
    }
    void expire() {
        std::lock_guard lock(mutex);
        for (auto it = sessions.begin(); it != sessions.end();) {
            bool old = Clock::now() - it->second->last_used > guests_stay;
            it = it->first[0] == 'g' && old ? sessions.erase(it) : std::next(it);
        }
    }
    size_t count() {
        std::lock_guard lock(mutex);
        return sessions.size();
    }
};

// Never destroyed: objects that a server holds at its end are never freed.
Log &request_log = *new Log;
Statistics &statistics = *new Statistics;
Cluster &cluster = *new Cluster;
Sessions &sessions = *new Sessions;

// Decodes an image whole: most operations need all of its pixels.
VImage decoded(const char *bytes, size_t length, Trace &trace) {
    VipsBlob *blob = vips_blob_copy(bytes, length);
    VImage image = VImage::jpegload_buffer(blob, VImage::option()->set("access", VIPS_ACCESS_RANDOM)).copy_memory();
    vips_area_unref(VIPS_AREA(blob));
    trace.step("decode", std::to_string(image.width()) + "x" + std::to_string(image.height()));
    return image;
}

std::string encoded(const VImage &image, Trace &trace) {
    VipsBlob *blob = image.jpegsave_buffer(VImage::option()->set("Q", 85));
    size_t length;
    auto *bytes = static_cast<const char *>(vips_blob_get(blob, &length));
    std::string text(bytes, length);
    vips_area_unref(VIPS_AREA(blob));
    trace.step("encode", std::to_string(length));
    return text;
}

std::string thumbnail(const Message &request, Trace &trace) {
    VImage image = decoded(request.body.data(), request.body.size(), trace);
    return encoded(image.thumbnail_image(request.number("width"), VImage::option()->set("height", 10000)).sharpen(), trace);
}

std::string rotated(const Message &request, Trace &trace) {
    VImage image = decoded(request.body.data(), request.body.size(), trace);
    VImage turned = image.rot(VIPS_ANGLE_D90).copy_memory();
    trace.step("rotate", "90");
    VImage smooth = turned.gaussblur(1.2).copy_memory();
    trace.step("blur", "1.2");
    return encoded(smooth, trace);
}

std::string inverted(const Message &request, Trace &trace) {
    VImage image = decoded(request.body.data(), request.body.size(), trace);
    return encoded(image.invert().linear(1.0, 0.0, VImage::option()->set("uchar", true)), trace);
}

// Many small images on one sheet: all are held until the last is there.
std::string sheet(const Message &request, Trace &trace) {
    std::istringstream sizes(request.text("sizes"));
    std::vector<VImage> images;
    size_t at = 0;
    for (std::string size; std::getline(sizes, size, ',');) {
        size_t length = std::stoul(size);
        if (length > request.body.size() - at) throw std::runtime_error("sizes beyond the body");
        VImage image = decoded(request.body.data() + at, length, trace);
        int width = request.number("width");
        images.push_back(image.thumbnail_image(width, VImage::option()->set("height", width)->set("size", VIPS_SIZE_FORCE)).copy_memory());
        sessions.remember(request, "image " + std::to_string(images.size()) + " of a sheet", cluster.choose(),
                          request.body.substr(at, length));
        at += length;
    }
    trace.step("shrink", std::to_string(images.size()));
    VImage joined = VImage::arrayjoin(images, VImage::option()->set("across", request.number("across"))).copy_memory();
    return encoded(joined, trace);
}

// A large image cut into tiles for a viewer that zooms; the one in view is the answer.
std::string tiles(const Message &request, Trace &trace) {
    VImage image = decoded(request.body.data(), request.body.size(), trace);
    int width = request.number("width"), wanted = request.number("tile");
    std::vector<std::string> cut;
    for (int y = 0; y + width <= image.height(); y += width)
        for (int x = 0; x + width <= image.width(); x += width)
            cut.push_back(encoded(image.extract_area(x, y, width, width), trace));
    trace.step("tiles", std::to_string(cut.size()));
    return cut.at(size_t(wanted));
}

Message handle(const Message &request) {
    static const std::map<std::string, std::string (*)(const Message &, Trace &)> operations = {
        {"thumbnail", thumbnail}, {"rotate", rotated}, {"invert", inverted}, {"sheet", sheet}, {"tiles", tiles}};
    auto start = Clock::now();
    auto trace = std::make_unique<Trace>();
    const std::string &operation = request.text("op");
    trace->session = request.text("session");
    trace->operation = operation;
    auto known = operations.find(operation);
    if (known == operations.end()) throw std::runtime_error("no operation " + operation);
    Message answer;
    answer.body = known->second(request, *trace);
    sessions.remember(request, operation + " of " + std::to_string(request.body.size()) + " bytes", cluster.choose(), answer.body);
    double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    statistics.add(operation, request.body.size(), request.text("agent"), ms);
    request_log.add(std::move(trace));
    answer.fields["status"] = "ok";
    answer.fields["sessions"] = std::to_string(sessions.count());
    return answer;
}

} // namespace images

using namespace images;

int main(int argc, char **argv) {
    if (argc < 2) bench::fail("usage: image_server SOCKET [WORKERS]");
    service::Service::block_signals();
    if (VIPS_INIT(argv[0])) bench::fail("libvips does not start");
    // Debian's ORC makes code for two threads at once in one place: with vector code this server crashes.
    vips_vector_set_enabled(FALSE);
    vips_concurrency_set(1); // requests run side by side, not the lines of one
    vips_cache_set_max(0);   // as image servers do: no two requests are the same
    std::atomic<bool> ending{false};
    std::thread housekeeping([&] {
        for (int tick = 0; !ending; tick++) {
            if (tick % 20 == 0) cluster.refresh();
            if (tick % 10 == 0) request_log.write(), sessions.expire();
            bench::sleep_ms(100);
        }
    });
    service::Service().run(argv[1], argc > 2 ? atoi(argv[2]) : 8, handle);
    ending = true;
    housekeeping.join();
    vips_shutdown();
}

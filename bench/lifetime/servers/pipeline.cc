// Word count in stages, by many threads in one process. It represents LLAMA's data processing pipeline (§9):
// "long-lived outputs of a stage are allocated while the heap contains a large amount of temporary data".
//
//   pipeline OUT THREADS FILE...
//
// Counts several things at once: words, how they begin and end, their lengths, the first and the last word of each
// line. Each file goes through map (while it is read), reduce and index, with a barrier after each stage; a stage's
// objects are freed by the threads of the next. The totals of all files stay. Writes a file for each thing into the
// folder OUT, lines "KEY COUNT" in order of the keys.
#include "load.h"

#include <fstream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

using Clock = std::chrono::steady_clock;

// Named: the names of an unnamed one's functions are not whole in debug information, and the model learns from names.
namespace counting {

const size_t chunk_bytes = 128 << 10, shards = 11;

// A piece of the input, from the reader to a mapper.
struct Chunk {
    size_t number;
    std::string text;
};

// The content of a chunk: stays in the job's record.
struct Lineage {
    std::string source;
    size_t chunk, keys, lines;
    std::vector<std::string> samples;
};

struct Progress {
    std::mutex mutex;
    std::map<std::string, std::vector<double>> stage_seconds;
    std::vector<std::unique_ptr<Lineage>> lineage;
};

// Never destroyed, as the totals below: objects that the program holds at its end are never freed.
Progress &progress = *new Progress;

// Runs `work` in so many threads of their own and waits for all of them.
template <class Work> void stage(const char *name, int threads, Work work) {
    load::phase(name);
    auto start = Clock::now();
    std::vector<std::thread> pool;
    for (int i = 0; i < threads; i++) pool.emplace_back(work);
    for (auto &thread : pool) thread.join();
    progress.stage_seconds[name].push_back(std::chrono::duration<double>(Clock::now() - start).count());
}

// Chunks end at the end of a line.
void read(const char *path, service::Queue<std::unique_ptr<Chunk>> &chunks) {
    std::ifstream file(path);
    if (!file) bench::fail("%s: cannot be read", path);
    auto chunk = std::make_unique<Chunk>(Chunk{0, {}});
    size_t number = 0;
    for (std::string line; std::getline(file, line);) {
        chunk->text += line + '\n';
        if (chunk->text.size() < chunk_bytes) continue;
        chunks.put(std::move(chunk));
        chunk = std::make_unique<Chunk>(Chunk{++number, {}});
    }
    if (!chunk->text.empty()) chunks.put(std::move(chunk));
    chunks.close();
}

using Words = std::vector<std::string>;

Words words_of(const std::string &line) {
    Words words;
    std::istringstream tokens(line);
    for (std::string word; tokens >> word;) words.push_back(word);
    return words;
}

// The counted things: the keys of a line's words.
struct EachWord {
    static constexpr const char *name = "words";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        for (auto &word : words) yield(word);
    }
};
struct Beginnings {
    static constexpr const char *name = "beginnings";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        for (auto &word : words) yield(word.substr(0, 6));
    }
};
struct Endings {
    static constexpr const char *name = "endings";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        for (auto &word : words) yield(word.substr(word.size() - std::min<size_t>(word.size(), 3)));
    }
};
struct Lengths {
    static constexpr const char *name = "lengths";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        for (auto &word : words) yield(std::to_string(word.size()));
    }
};
struct FirstWords {
    static constexpr const char *name = "first_words";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        if (!words.empty()) yield(words.front());
    }
};
struct LastWords {
    static constexpr const char *name = "last_words";
    template <class Yield> static void keys(const Words &words, Yield yield) {
        if (!words.empty()) yield(words.back());
    }
};

// The stages for one thing that is counted.
template <class Counts> class Counting {
    // A mapper's result for one key of its chunk.
    struct Emitted {
        std::string key;
        uint32_t line;
    };
    using Emissions = std::vector<std::unique_ptr<Emitted>>;

    // A key's count in one file, sorted within its shard.
    struct Counted {
        std::string key;
        uint64_t count;
        std::vector<uint32_t> first_lines;
    };

    // The running total of a key, over all files.
    struct Total {
        uint64_t count = 0;
        std::vector<std::pair<uint16_t, uint64_t>> by_file;
    };

    // The part of the keys that one reducer has.
    struct Shard {
        std::mutex mutex;
        std::vector<std::unique_ptr<Emissions>> emitted; // map's output, reduce's input
        std::vector<std::unique_ptr<Counted>> counted;   // reduce's output, index's input
        std::map<std::string, std::unique_ptr<Total>> totals;
    };
    static inline Shard (&shard)[shards] = *new Shard[1][shards];

    static void record(const char *path, const Chunk &chunk, size_t keys, size_t lines,
                       const std::unordered_set<std::string> &different) {
        auto lineage = std::make_unique<Lineage>(Lineage{path, chunk.number, keys, lines, {}});
        for (auto &key : different) {
            lineage->samples.push_back(key + " in chunk " + std::to_string(chunk.number));
            if (lineage->samples.size() == 20) break;
        }
        std::lock_guard lock(progress.mutex);
        progress.lineage.push_back(std::move(lineage));
    }

  public:
    static void map(const char *path, const Chunk &chunk) {
        std::unique_ptr<Emissions> out[shards];
        for (auto &one : out) one = std::make_unique<Emissions>();
        std::unordered_set<std::string> different;
        std::istringstream text(chunk.text);
        uint32_t lines = 0;
        size_t keys = 0;
        for (std::string line; std::getline(text, line); lines++)
            Counts::keys(words_of(line), [&](const std::string &key) {
                keys++;
                different.insert(key);
                out[std::hash<std::string>()(key) % shards]->push_back(std::make_unique<Emitted>(Emitted{key, lines}));
            });
        record(path, chunk, keys, lines, different);
        for (size_t i = 0; i < shards; i++) {
            std::lock_guard lock(shard[i].mutex);
            shard[i].emitted.push_back(std::move(out[i]));
        }
    }

    // Brings a shard's keys together, and frees the mappers' objects, batch by batch.
    static void reduce(size_t number, uint16_t) {
        Shard &mine = shard[number];
        std::unordered_map<std::string, std::unique_ptr<Counted>> found;
        for (auto &batch : mine.emitted) {
            for (auto &emitted : *batch) {
                auto &counted = found[emitted->key];
                if (!counted) counted = std::make_unique<Counted>(Counted{emitted->key, 0, {}});
                counted->count++;
                if (counted->first_lines.size() < 4) counted->first_lines.push_back(emitted->line);
                emitted.reset();
            }
            batch.reset();
        }
        mine.emitted.clear();
        for (auto &[key, counted] : found) mine.counted.push_back(std::move(counted));
        std::sort(mine.counted.begin(), mine.counted.end(), [](auto &a, auto &b) { return a->key < b->key; });
    }

    static void index(size_t number, uint16_t file) {
        Shard &mine = shard[number];
        for (auto &counted : mine.counted) {
            auto &total = mine.totals[counted->key];
            if (!total) total = std::make_unique<Total>();
            total->count += counted->count;
            total->by_file.emplace_back(file, counted->count);
            counted.reset();
        }
        mine.counted.clear();
        mine.counted.shrink_to_fit();
    }

    static void write(const std::string &folder) {
        std::map<std::string_view, uint64_t> all;
        for (auto &one : shard)
            for (auto &[key, total] : one.totals) all[key] = total->count;
        std::ofstream out(folder + "/" + Counts::name);
        for (auto &[key, count] : all) out << key << ' ' << count << '\n';
        if (!out.flush()) bench::fail("%s/%s: not written whole", folder.c_str(), Counts::name);
    }
};

// All counts, in one pass over the input.
template <class... Counts> struct Job {
    static void process(const char *path, uint16_t file, int threads) {
        service::Queue<std::unique_ptr<Chunk>> chunks(256);
        std::thread reader([&] { read(path, chunks); });
        stage("map", threads, [&] {
            for (std::unique_ptr<Chunk> chunk; chunks.take(chunk);) (Counting<Counts>::map(path, *chunk), ...);
        });
        reader.join();
        by_shard("reduce", threads, file, {Counting<Counts>::reduce...});
        by_shard("index", threads, file, {Counting<Counts>::index...});
    }

    static void write(const std::string &folder) { (Counting<Counts>::write(folder), ...); }

  private:
    using Work = void (*)(size_t shard, uint16_t file);

    static void by_shard(const char *name, int threads, uint16_t file, const std::vector<Work> &each) {
        std::atomic<size_t> next{0};
        stage(name, threads, [&] {
            for (size_t i; (i = next++) < each.size() * shards;) each[i % each.size()](i / each.size(), file);
        });
    }
};

using Everything = Job<EachWord, Beginnings, Endings, Lengths, FirstWords, LastWords>;

} // namespace counting

using namespace counting;

int main(int argc, char **argv) {
    if (argc < 4) bench::fail("usage: pipeline OUT THREADS FILE...");
    auto start = Clock::now();
    for (int i = 3; i < argc; i++) Everything::process(argv[i], uint16_t(i - 3), atoi(argv[2]));
    double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    size_t keys = 0;
    for (auto &lineage : progress.lineage) keys += lineage->keys;
    load::phase("settle");
    load::moment("end");
    Everything::write(argv[1]);
    printf("{\"requests\": %zu, \"busy_s\": %.4f, \"requests_per_s\": %.0f}\n", keys, seconds, double(keys) / seconds);
}

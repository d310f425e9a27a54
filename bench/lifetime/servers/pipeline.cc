// Word count in stages, by many threads in one process. It stands for LLAMA's data processing pipeline (§9): "long-lived
// outputs of a stage are allocated while the heap contains a large amount of temporary data".
//
//   pipeline OUT.counts THREADS FILE...
//
// Each file goes through map (while it is read), reduce and index, with a barrier after each stage; what a stage makes
// is freed by the threads of the next. The totals of all files stay. Writes "WORD COUNT" lines in order of the words.
#include "load.h"

#include <fstream>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

using Clock = std::chrono::steady_clock;

namespace {

const size_t chunk_bytes = 128 << 10, shards = 61;

// A piece of the input, from the reader to a mapper.
struct Chunk {
    size_t number;
    std::string text;
};

// What a mapper says of one word of its chunk.
struct Emitted {
    std::string word;
    uint32_t line;
};
using Emissions = std::vector<std::unique_ptr<Emitted>>;

// What a chunk had in it: stays in the job's record.
struct Lineage {
    std::string source;
    size_t chunk, words, lines;
    std::vector<std::string> samples;
};

// A word's count in one file, sorted within its shard.
struct Counted {
    std::string word;
    uint64_t count;
    std::vector<uint32_t> first_lines;
};

// The running total of a word, over all files.
struct Total {
    uint64_t count = 0;
    std::vector<std::pair<uint16_t, uint64_t>> by_file;
};

// The part of the words that one reducer has.
struct Shard {
    std::mutex mutex;
    std::vector<std::unique_ptr<Emissions>> emitted; // map's output, reduce's input
    std::vector<std::unique_ptr<Counted>> counted;   // reduce's output, index's input
    std::map<std::string, std::unique_ptr<Total>> totals;
};

struct Progress {
    std::mutex mutex;
    std::map<std::string, std::vector<double>> stage_seconds;
    std::vector<std::unique_ptr<Lineage>> lineage;
};

// Never destroyed: what the program holds when it ends was never freed.
Shard (&shard)[shards] = *new Shard[1][shards];
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

void record(const char *path, const Chunk &chunk, size_t words, size_t lines, const std::unordered_set<std::string> &different) {
    auto lineage = std::make_unique<Lineage>(Lineage{path, chunk.number, words, lines, {}});
    for (auto &word : different) {
        lineage->samples.push_back(word + " in chunk " + std::to_string(chunk.number));
        if (lineage->samples.size() == 20) break;
    }
    std::lock_guard lock(progress.mutex);
    progress.lineage.push_back(std::move(lineage));
}

void map_chunk(const char *path, const Chunk &chunk) {
    std::unique_ptr<Emissions> out[shards];
    for (auto &one : out) one = std::make_unique<Emissions>();
    std::unordered_set<std::string> different;
    std::istringstream text(chunk.text);
    uint32_t lines = 0;
    size_t words = 0;
    for (std::string line; std::getline(text, line); lines++) {
        std::istringstream tokens(line);
        for (std::string word; tokens >> word; words++) {
            different.insert(word);
            out[std::hash<std::string>()(word) % shards]->push_back(std::make_unique<Emitted>(Emitted{word, lines}));
        }
    }
    record(path, chunk, words, lines, different);
    for (size_t i = 0; i < shards; i++) {
        std::lock_guard lock(shard[i].mutex);
        shard[i].emitted.push_back(std::move(out[i]));
    }
}

// Brings a shard's words together, and frees what the mappers have made, batch by batch.
void reduce_shard(Shard &mine) {
    std::unordered_map<std::string, std::unique_ptr<Counted>> words;
    for (auto &batch : mine.emitted) {
        for (auto &emitted : *batch) {
            auto &counted = words[emitted->word];
            if (!counted) counted = std::make_unique<Counted>(Counted{emitted->word, 0, {}});
            counted->count++;
            if (counted->first_lines.size() < 4) counted->first_lines.push_back(emitted->line);
            emitted.reset();
        }
        batch.reset();
    }
    mine.emitted.clear();
    for (auto &[word, counted] : words) mine.counted.push_back(std::move(counted));
    std::sort(mine.counted.begin(), mine.counted.end(), [](auto &a, auto &b) { return a->word < b->word; });
}

void index_shard(Shard &mine, uint16_t file) {
    for (auto &counted : mine.counted) {
        auto &total = mine.totals[counted->word];
        if (!total) total = std::make_unique<Total>();
        total->count += counted->count;
        total->by_file.emplace_back(file, counted->count);
        counted.reset();
    }
    mine.counted.clear();
    mine.counted.shrink_to_fit();
}

void process(const char *path, uint16_t file, int threads) {
    service::Queue<std::unique_ptr<Chunk>> chunks(256);
    std::thread reader([&] { read(path, chunks); });
    stage("map", threads, [&] {
        for (std::unique_ptr<Chunk> chunk; chunks.take(chunk);) map_chunk(path, *chunk);
    });
    reader.join();
    std::atomic<size_t> next{0};
    stage("reduce", threads, [&] {
        for (size_t i; (i = next++) < shards;) reduce_shard(shard[i]);
    });
    next = 0;
    stage("index", threads, [&] {
        for (size_t i; (i = next++) < shards;) index_shard(shard[i], file);
    });
}

void write(const char *path) {
    std::map<std::string_view, uint64_t> all;
    for (auto &one : shard)
        for (auto &[word, total] : one.totals) all[word] = total->count;
    std::ofstream out(path);
    for (auto &[word, count] : all) out << word << ' ' << count << '\n';
    if (!out.flush()) bench::fail("%s: not written whole", path);
}

} // namespace

int main(int argc, char **argv) {
    if (argc < 4) bench::fail("usage: pipeline OUT.counts THREADS FILE...");
    auto start = Clock::now();
    for (int i = 3; i < argc; i++) process(argv[i], uint16_t(i - 3), atoi(argv[2]));
    double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    size_t words = 0;
    for (auto &lineage : progress.lineage) words += lineage->words;
    load::phase("settle");
    load::moment("end");
    write(argv[1]);
    printf("{\"requests\": %zu, \"busy_s\": %.4f, \"requests_per_s\": %.0f}\n", words, seconds, double(words) / seconds);
}

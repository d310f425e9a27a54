// Writes text for the pipeline: words by Zipf's law, in lines, and beside it how often each word is in it.
//
//   text OUT.txt OUT.counts WORDS SEED
//
// A word's spelling follows from its rank, so that files of different seeds share most of theirs. OUT.counts has a line
// "WORD COUNT" for each word of the text, in order of the words.
#include "report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

namespace {

const size_t vocabulary = 200000;

// Frequent words are short, rare ones long, as in language.
std::string spelled(size_t rank) {
    static const char *syllables[] = {"ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va"};
    std::string word;
    size_t length = rank < 16 ? 1 : rank < 4096 ? 3 : 5 + rank % 7;
    bench::Random random(rank + 1);
    for (size_t i = 0; i < length; i++) word += syllables[random.below(16)];
    return word + std::to_string(rank);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 5) bench::fail("usage: text OUT.txt OUT.counts WORDS SEED");
    uint64_t words = strtoull(argv[3], nullptr, 10);
    bench::Random random(strtoull(argv[4], nullptr, 10));
    std::vector<double> up_to(vocabulary);
    double sum = 0;
    for (size_t rank = 0; rank < vocabulary; rank++) up_to[rank] = sum += 1 / std::pow(double(rank + 3), 0.9);
    std::vector<std::string> spelling(vocabulary);
    for (size_t rank = 0; rank < vocabulary; rank++) spelling[rank] = spelled(rank);

    FILE *text = fopen(argv[1], "w"), *counts = fopen(argv[2], "w");
    if (!text || !counts) bench::fail("%s, %s: cannot be written", argv[1], argv[2]);
    std::vector<uint64_t> count(vocabulary);
    for (uint64_t n = 0; n < words; n++) {
        double at = double(random.next() >> 11) / double(1ull << 53) * sum;
        size_t rank = size_t(std::lower_bound(up_to.begin(), up_to.end(), at) - up_to.begin());
        count[rank]++;
        fputs(spelling[rank].c_str(), text);
        fputc(n % 12 == 11 ? '\n' : ' ', text);
    }
    std::map<std::string, uint64_t> sorted;
    for (size_t rank = 0; rank < vocabulary; rank++)
        if (count[rank]) sorted[spelling[rank]] = count[rank];
    for (auto &[word, times] : sorted) fprintf(counts, "%s %llu\n", word.c_str(), (unsigned long long)times);
    if (fclose(text) || fclose(counts)) bench::fail("%s, %s: not written whole", argv[1], argv[2]);
}

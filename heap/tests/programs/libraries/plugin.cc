// library
// A plug-in that allocates in its constructors, in thread_local objects and in its destructors;
// dlopen_plugins.c loads it.
#include <memory>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <vector>

static std::vector<std::string> *made;
struct Global {
    std::vector<std::string> words;
    Global() { for (int i = 0; i < 500; i++) words.emplace_back(size_t(i), 'g'); }
    ~Global() { words.assign(300, std::string(100, 'd')); }
};
static Global global;
struct PerThread {
    std::unique_ptr<char[]> bytes{new char[5000]};
    PerThread() { memset(bytes.get(), 7, 5000); }
    ~PerThread() { std::string last(1000, 't'); bytes.reset(); }
};
static thread_local PerThread per_thread;

__attribute__((constructor)) static void loaded() { made = new std::vector<std::string>(100, std::string(50, 'c')); }
__attribute__((destructor)) static void unloaded() {
    free(malloc(3000));
    delete made;
}

extern "C" void *plugin_object(size_t size) {
    char *p = (char *)malloc(size);
    memset(p, per_thread.bytes[size % 5000], size);
    return p;
}
extern "C" long plugin_words() { return (long)(global.words.size() + made->size()); }

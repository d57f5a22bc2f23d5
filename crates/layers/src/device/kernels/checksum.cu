// The sum of mixed words of device memory: one share per thread, to be added up by the host. checksum.rs says what is
// summed and why. checksum.ptx is what NVRTC makes of this file; a test compares them.

typedef unsigned long long word;

static __device__ word mix(word value, word index) {
    word mixed = (value ^ (index + 1) * 0x9E3779B97F4A7C15ULL) * 0xBF58476D1CE4E5B9ULL;
    return (mixed ^ mixed >> 32) * 0x94D049BB133111EBULL;
}

extern "C" __global__ void outcrop_sum_words(const unsigned char *bytes, word length, word first, word *sums) {
    const word *words = (const word *)bytes;
    const word count = length / 8;
    const word thread = (word)blockIdx.x * blockDim.x + threadIdx.x;
    const word threads = (word)gridDim.x * blockDim.x;
    word sum = 0;
    for (word index = thread; index < count; index += threads) {
        sum += mix(words[index], first + index);
    }
    if (thread == 0 && length % 8 != 0) {
        word last = 0;
        for (word byte = 0; byte < length % 8; byte++) {
            last |= (word)bytes[8 * count + byte] << 8 * byte;
        }
        sum += mix(last, first + count);
    }
    sums[thread] = sum;
}

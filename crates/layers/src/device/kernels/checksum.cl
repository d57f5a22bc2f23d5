// The same as checksum.cu, for OpenCL.

ulong mix_word(ulong value, ulong index) {
    ulong mixed = (value ^ (index + 1) * 0x9E3779B97F4A7C15UL) * 0xBF58476D1CE4E5B9UL;
    return (mixed ^ mixed >> 32) * 0x94D049BB133111EBUL;
}

kernel void outcrop_sum_words(global const uchar *memory, ulong offset, ulong length, ulong first, global ulong *sums) {
    global const uchar *bytes = memory + offset;
    global const ulong *words = (global const ulong *)bytes;
    const ulong count = length / 8;
    const ulong thread = get_global_id(0);
    const ulong threads = get_global_size(0);
    ulong sum = 0;
    for (ulong index = thread; index < count; index += threads) {
        sum += mix_word(words[index], first + index);
    }
    if (thread == 0 && length % 8 != 0) {
        ulong last = 0;
        for (ulong byte = 0; byte < length % 8; byte++) {
            last |= (ulong)bytes[8 * count + byte] << 8 * byte;
        }
        sum += mix_word(last, first + count);
    }
    sums[thread] = sum;
}

// XXH3 (128 bits) and MD5 of consecutive blocks of device memory, for both drivers: OpenCL compiles this file as it is when
// it is first used, and hash.ptx is what NVRTC makes of it; a test compares them. The hashes have the byte order of
// `HashKind::hash`. Devices are little-endian, as all are that these drivers serve.

#ifdef __OPENCL_VERSION__
#define KERNEL kernel __attribute__((reqd_work_group_size(64, 1, 1))) void
#define FUNCTION static
#define RARE_FUNCTION static __attribute__((noinline))
#define GLOBAL global
#define CONSTANT constant
#define OF_GROUP local
#define IN_GROUP local
#define GROUP_INDEX get_group_id(0)
#define THREAD_INDEX get_local_id(0)
#define WAIT_FOR_GROUP barrier(CLK_LOCAL_MEM_FENCE)
#define HIGH_PRODUCT mul_hi
#define UNROLLED_4_TIMES
typedef ulong word;
typedef uint half_word;
typedef uchar byte;
#else
#define KERNEL extern "C" __global__ void __launch_bounds__(64)
#define FUNCTION static __device__
#define RARE_FUNCTION extern "C" __device__ __noinline__
#define GLOBAL
#define CONSTANT static __device__ __constant__ const
#define OF_GROUP __shared__
#define IN_GROUP
#define GROUP_INDEX blockIdx.x
#define THREAD_INDEX threadIdx.x
#define WAIT_FOR_GROUP __syncthreads()
#define HIGH_PRODUCT __umul64hi
#define UNROLLED_4_TIMES _Pragma("unroll 4")
typedef unsigned long long word;
typedef unsigned int half_word;
typedef unsigned char byte;
#endif

#define GROUP_THREADS 64
#define LANES 8

// Not inlined, to keep the text for CUDA short: blocks of a store are aligned.
RARE_FUNCTION half_word read_half_anywhere(GLOBAL const byte *at) {
    return at[0] | (half_word)at[1] << 8 | (half_word)at[2] << 16 | (half_word)at[3] << 24;
}

RARE_FUNCTION word read_word_anywhere(GLOBAL const byte *at) {
    return read_half_anywhere(at) | (word)read_half_anywhere(at + 4) << 32;
}

FUNCTION word read_word(GLOBAL const byte *at) {
    return (word)at % 8 == 0 ? *(GLOBAL const word *)at : read_word_anywhere(at);
}

RARE_FUNCTION void write_big_endian(word low, word high, GLOBAL byte *hash) {
    for (int index = 0; index < 8; index++) {
        hash[index] = (byte)(high >> (56 - 8 * index));
        hash[8 + index] = (byte)(low >> (56 - 8 * index));
    }
}

// XXH3. The names of the constants are those of its specification.

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 ((word)0x9E3779B185EBCA87)
#define PRIME64_2 ((word)0xC2B2AE3D27D4EB4F)
#define PRIME64_3 ((word)0x165667B19E3779F9)
#define PRIME64_4 ((word)0x85EBCA77C2B2AE63)
#define PRIME64_5 ((word)0x27D4EB2F165667C5)
#define PRIME_MX1 ((word)0x165667919E3779F9)
#define PRIME_MX2 ((word)0x9FB21C651E98DF25)

CONSTANT word secret[24] = {
    0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
    0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
    0xCB00C391BB52283C, 0xA32E531B8B65D088, 0x4EF90DA297486471, 0xD8ACDEA946EF1938,
    0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A, 0x647378D9C97E9FC8,
    0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
    0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF
};

// Where the accumulators of a long block start, one for each lane.
CONSTANT word start[LANES] = {
    PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1
};

FUNCTION word secret_at(int at) {
    int shift = 8 * (at % 8);
    word low = secret[at / 8] >> shift;
    return shift == 0 ? low : low | secret[at / 8 + 1] << (64 - shift);
}

FUNCTION word avalanche(word value) {
    value = (value ^ value >> 37) * PRIME_MX1;
    return value ^ value >> 32;
}

FUNCTION word avalanche_short(word value) {
    value = (value ^ value >> 33) * PRIME64_2;
    value = (value ^ value >> 29) * PRIME64_3;
    return value ^ value >> 32;
}

FUNCTION word folded_product(word left, word right) {
    return left * right ^ HIGH_PRODUCT(left, right);
}

FUNCTION half_word swapped_half(half_word value) {
    return value << 24 | (value & 0xFF00) << 8 | (value >> 8 & 0xFF00) | value >> 24;
}

FUNCTION word swapped(word value) {
    return (word)swapped_half((half_word)value) << 32 | swapped_half((half_word)(value >> 32));
}

FUNCTION void hash_1_to_3(GLOBAL const byte *bytes, word length, GLOBAL byte *hash) {
    half_word low = (half_word)bytes[0] << 16 | (half_word)bytes[length >> 1] << 24 | bytes[length - 1];
    low |= (half_word)length << 8;
    half_word high = swapped_half(low);
    high = high << 13 | high >> 19;
    word low_key = (half_word)secret[0] ^ secret[0] >> 32;
    word high_key = (half_word)secret[1] ^ secret[1] >> 32;
    write_big_endian(avalanche_short(low ^ low_key), avalanche_short(high ^ high_key), hash);
}

FUNCTION void hash_4_to_8(GLOBAL const byte *bytes, word length, GLOBAL byte *hash) {
    word both = read_half_anywhere(bytes) | (word)read_half_anywhere(bytes + length - 4) << 32;
    word keyed = both ^ secret[2] ^ secret[3];
    word factor = PRIME64_1 + (length << 2);
    word low = keyed * factor;
    word high = HIGH_PRODUCT(keyed, factor) + (low << 1);
    low ^= high >> 3;
    low = (low ^ low >> 35) * PRIME_MX2;
    write_big_endian(low ^ low >> 28, avalanche(high), hash);
}

FUNCTION void hash_9_to_16(GLOBAL const byte *bytes, word length, GLOBAL byte *hash) {
    word first = read_word(bytes);
    word last = read_word(bytes + length - 8);
    word keyed = first ^ last ^ secret[4] ^ secret[5];
    word low = keyed * PRIME64_1 + ((length - 1) << 54);
    last ^= secret[6] ^ secret[7];
    word high = HIGH_PRODUCT(keyed, PRIME64_1) + last + (word)(half_word)last * (PRIME32_2 - 1);
    low ^= swapped(high);
    high = HIGH_PRODUCT(low, PRIME64_2) + high * PRIME64_2;
    write_big_endian(avalanche(low * PRIME64_2), avalanche(high), hash);
}

RARE_FUNCTION word mixed(GLOBAL const byte *bytes, int secret_offset) {
    return folded_product(read_word(bytes) ^ secret_at(secret_offset), read_word(bytes + 8) ^ secret_at(secret_offset + 8));
}

FUNCTION void mix(word *low, word *high, GLOBAL const byte *first, GLOBAL const byte *second, int secret_offset) {
    *low = (*low + mixed(first, secret_offset)) ^ (read_word(second) + read_word(second + 8));
    *high = (*high + mixed(second, secret_offset + 16)) ^ (read_word(first) + read_word(first + 8));
}

FUNCTION void hash_17_to_240(GLOBAL const byte *bytes, word length, GLOBAL byte *hash) {
    word low = length * PRIME64_1;
    word high = 0;
    if (length <= 128) {
#pragma unroll 1
        for (int pair = (int)(length - 1) / 32; pair >= 0; pair--) {
            mix(&low, &high, bytes + 16 * pair, bytes + length - 16 * (pair + 1), 32 * pair);
        }
    } else {
#pragma unroll 1
        for (int at = 0; at < 128; at += 32) {
            mix(&low, &high, bytes + at, bytes + at + 16, at);
        }
        low = avalanche(low);
        high = avalanche(high);
#pragma unroll 1
        for (int at = 128; at + 32 <= (int)length; at += 32) {
            mix(&low, &high, bytes + at, bytes + at + 16, at - 128 + 3);
        }
        mix(&low, &high, bytes + length - 16, bytes + length - 32, 103);
    }
    word last = low * PRIME64_1 + high * PRIME64_4 + length * PRIME64_2;
    write_big_endian(avalanche(low + high), 0 - avalanche(last), hash);
}

// One lane of a stripe of 64 bytes. The product is of the lane's own word, the sum of its neighbour's.
FUNCTION word accumulated(word sum, GLOBAL const byte *stripe, int lane, word key) {
    word keyed = read_word(stripe + 8 * lane) ^ key;
    return sum + read_word(stripe + 8 * (lane ^ 1)) + (word)(half_word)keyed * (keyed >> 32);
}

// The accumulator of one lane of a block with more than 240 bytes. All lanes are independent up to here.
FUNCTION word lane_sum(GLOBAL const byte *bytes, word length, int lane) {
    word sum = start[lane];
    word stripes = (length - 1) / 64;
    UNROLLED_4_TIMES
    for (word stripe = 0; stripe < stripes; stripe++) {
        sum = accumulated(sum, bytes + 64 * stripe, lane, secret[stripe % 16 + lane]);
        if (stripe % 16 == 15) {
            sum = (sum ^ sum >> 47 ^ secret[16 + lane]) * PRIME32_1;
        }
    }
    return accumulated(sum, bytes + length - 64, lane, secret_at(121 + 8 * lane));
}

RARE_FUNCTION word merged(IN_GROUP const word *sums, int secret_offset, word first) {
#pragma unroll 1
    for (int pair = 0; pair < LANES / 2; pair++) {
        word left = sums[2 * pair] ^ secret_at(secret_offset + 16 * pair);
        word right = sums[2 * pair + 1] ^ secret_at(secret_offset + 16 * pair + 8);
        first += folded_product(left, right);
    }
    return avalanche(first);
}

// Eight threads for each block, because a device reads neighbouring words at once.
KERNEL outcrop_hash_xxh3(GLOBAL const byte *memory, word offset, word length, word block_bytes, GLOBAL byte *hashes) {
    OF_GROUP word sums[GROUP_THREADS];
    const int thread = (int)THREAD_INDEX;
    const int lane = thread % LANES;
    const word block = (word)GROUP_INDEX * (GROUP_THREADS / LANES) + thread / LANES;
    const word at = block * block_bytes;
    const word rest = at < length ? length - at : 0;
    const word bytes = rest < block_bytes ? rest : block_bytes;
    GLOBAL const byte *from = memory + offset + at;
    if (bytes > 240) {
        sums[thread] = lane_sum(from, bytes, lane);
    }
    WAIT_FOR_GROUP;
    if (lane != 0 || bytes == 0) {
        return;
    }
    GLOBAL byte *hash = hashes + 16 * block;
    if (bytes > 240) {
        word low = merged(sums + thread, 11, bytes * PRIME64_1);
        word high = merged(sums + thread, 117, ~(bytes * PRIME64_2));
        write_big_endian(low, high, hash);
    } else if (bytes > 16) {
        hash_17_to_240(from, bytes, hash);
    } else if (bytes > 8) {
        hash_9_to_16(from, bytes, hash);
    } else if (bytes > 3) {
        hash_4_to_8(from, bytes, hash);
    } else {
        hash_1_to_3(from, bytes, hash);
    }
}

// MD5 (RFC 1321).

CONSTANT half_word sines[64] = {
    0xD76AA478, 0xE8C7B756, 0x242070DB, 0xC1BDCEEE, 0xF57C0FAF, 0x4787C62A, 0xA8304613, 0xFD469501,
    0x698098D8, 0x8B44F7AF, 0xFFFF5BB1, 0x895CD7BE, 0x6B901122, 0xFD987193, 0xA679438E, 0x49B40821,
    0xF61E2562, 0xC040B340, 0x265E5A51, 0xE9B6C7AA, 0xD62F105D, 0x02441453, 0xD8A1E681, 0xE7D3FBC8,
    0x21E1CDE6, 0xC33707D6, 0xF4D50D87, 0x455A14ED, 0xA9E3E905, 0xFCEFA3F8, 0x676F02D9, 0x8D2A4C8A,
    0xFFFA3942, 0x8771F681, 0x6D9D6122, 0xFDE5380C, 0xA4BEEA44, 0x4BDECFA9, 0xF6BB4B60, 0xBEBFBC70,
    0x289B7EC6, 0xEAA127FA, 0xD4EF3085, 0x04881D05, 0xD9D4D039, 0xE6DB99E5, 0x1FA27CF8, 0xC4AC5665,
    0xF4292244, 0x432AFF97, 0xAB9423A7, 0xFC93A039, 0x655B59C3, 0x8F0CCC92, 0xFFEFF47D, 0x85845DD1,
    0x6FA87E4F, 0xFE2CE6E0, 0xA3014314, 0x4E0811A1, 0xF7537E82, 0xBD3AF235, 0x2AD7D2BB, 0xEB86D391
};

CONSTANT int turns[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

// Word `index` of the padded message: the bytes, a byte 0x80, zeroes, and the length in bits.
RARE_FUNCTION half_word padded_word(GLOBAL const byte *bytes, word length, word index, word words) {
    if (4 * index + 4 <= length) {
        return read_half_anywhere(bytes + 4 * index);
    }
    if (index + 2 >= words) {
        return (half_word)(8 * length >> (index + 2 == words ? 0 : 32));
    }
    half_word value = 0;
    for (int place = 0; place < 4; place++) {
        word at = 4 * index + place;
        half_word here = at < length ? bytes[at] : at == length ? 0x80 : 0;
        value |= here << (8 * place);
    }
    return value;
}

// One thread for each block: every step needs the one before.
KERNEL outcrop_hash_md5(GLOBAL const byte *memory, word offset, word length, word block_bytes, GLOBAL byte *hashes) {
    const word block = (word)GROUP_INDEX * GROUP_THREADS + THREAD_INDEX;
    const word at = block * block_bytes;
    if (at >= length) {
        return;
    }
    const word bytes = length - at < block_bytes ? length - at : block_bytes;
    GLOBAL const byte *from = memory + offset + at;
    const word words = ((bytes + 8) / 64 + 1) * 16;
    half_word state[4] = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476};
    for (word first = 0; first < words; first += 16) {
        half_word message[16];
        const bool is_plain = 4 * (first + 16) <= bytes && (word)from % 4 == 0;
#pragma unroll
        for (int index = 0; index < 16; index++) {
            message[index] = is_plain ? ((GLOBAL const half_word *)from)[first + index]
                                      : padded_word(from, bytes, first + index, words);
        }
        half_word a = state[0], b = state[1], c = state[2], d = state[3];
#pragma unroll
        for (int step = 0; step < 64; step++) {
            half_word chosen;
            int index;
            if (step < 16) {
                chosen = (b & c) | (~b & d);
                index = step;
            } else if (step < 32) {
                chosen = (d & b) | (~d & c);
                index = (5 * step + 1) % 16;
            } else if (step < 48) {
                chosen = b ^ c ^ d;
                index = (3 * step + 5) % 16;
            } else {
                chosen = c ^ (b | ~d);
                index = 7 * step % 16;
            }
            half_word sum = a + chosen + sines[step] + message[index];
            int turn = turns[step / 16 * 4 + step % 4];
            a = d;
            d = c;
            c = b;
            b += sum << turn | sum >> (32 - turn);
        }
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
    }
    GLOBAL byte *hash = hashes + 16 * block;
    for (int index = 0; index < 16; index++) {
        hash[index] = (byte)(state[index / 4] >> (8 * (index % 4)));
    }
}

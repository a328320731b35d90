/* Vector operations, under the same names for every instruction set.
 *
 * Only the *_lanes.c sources include this header. The Makefile compiles each of them once per instruction
 * set, and everything here is as wide as that set's registers: LANES_WIDTH floats in a `vf`, LANES_PARTS of
 * them to the 16 lanes of the kernels. A kernel gives the same bits at every width, because each operation is
 * exact or correctly rounded, lane by lane, and the one sum across lanes (lanes_sum) adds in one tree. A
 * missing instruction is built from others: SSE2 has no fma, so lanes_fma computes one in doubles. */
#ifndef KERNELS_LANES_LANES_H
#define KERNELS_LANES_LANES_H

#include "kernels/base/rng.h"

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#ifndef LANES_ISA
#define LANES_ISA baseline
#endif

/* LANES_NAME(f) is f_avx2, and so on: a name for what leaves the object file. */
#define LANES_PASTE(name, isa) name##_##isa
#define LANES_PASTE_EXPANDED(name, isa) LANES_PASTE(name, isa)
#define LANES_NAME(name) LANES_PASTE_EXPANDED(name, LANES_ISA)

#define LANES_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
enum { LANES_WIDTH = 16 };
#elif defined(__AVX2__)
enum { LANES_WIDTH = 8 };
#else
enum { LANES_WIDTH = 4 };
#endif
enum { LANES_COUNT = 16, LANES_PARTS = LANES_COUNT / LANES_WIDTH };

typedef float vf __attribute__((vector_size(LANES_WIDTH * 4)));    // floats
typedef int32_t vi __attribute__((vector_size(LANES_WIDTH * 4)));  // the same lanes as integers
typedef uint32_t vu __attribute__((vector_size(LANES_WIDTH * 4))); // and without sign
typedef uint64_t vw __attribute__((vector_size(LANES_WIDTH * 4))); // two lanes to a word

/* x - 0 and not 0 + x: it changes no value, not even -0, so the compiler leaves the subtraction out. */
LANES_INLINE vf lanes_set(float x)
{
    return x - (vf){};
}

LANES_INLINE vu lanes_set_u32(uint32_t x)
{
    return (vu){} + x;
}

LANES_INLINE vf lanes_load(const float *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

LANES_INLINE vu lanes_load_u32(const uint32_t *from)
{
    vu x;
    memcpy(&x, from, sizeof x);
    return x;
}

LANES_INLINE void lanes_store(float *to, vf x)
{
    memcpy(to, &x, sizeof x);
}

/* Past the caches, to an address aligned to the vector. Other threads see it in order with other stores only
 * behind an _mm_sfence. */
LANES_INLINE void lanes_stream(float *to, vf x)
{
#if defined(__AVX512F__)
    _mm512_stream_ps(to, x);
#elif defined(__AVX2__)
    _mm256_stream_ps(to, x);
#else
    _mm_stream_ps(to, x);
#endif
}

/* first, first + 1, …: the lanes' own numbers. */
LANES_INLINE vu lanes_index(uint32_t first)
{
    static const uint32_t index[LANES_COUNT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lanes_load_u32(index) + first;
}

#if defined(__AVX512F__)

LANES_INLINE vf lanes_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

LANES_INLINE vf lanes_sqrt(vf x)
{
    return _mm512_sqrt_ps(x);
}

/* x where its bit of `mask` is 1, else 0. */
LANES_INLINE vf lanes_keep(uint32_t mask, vf x)
{
    return _mm512_maskz_mov_ps((__mmask16)mask, x);
}

/* a > b ? a : b; a NaN in b stays, as relu and max in PyTorch have it. lanes_min: a < b ? a : b, likewise. */
LANES_INLINE vf lanes_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

LANES_INLINE vf lanes_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* x where a < b, else 0. */
LANES_INLINE vf lanes_where_less(vf a, vf b, vf x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x);
}

/* x where a < b is false (a NaN makes it false), else 0. */
LANES_INLINE vf lanes_where_not_less(vf a, vf b, vf x)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
}

/* Bit i: lane i of a is above lane i of b. */
LANES_INLINE uint32_t lanes_above_bits(vu a, vu b)
{
    return _mm512_cmpgt_epu32_mask((__m512i)a, (__m512i)b);
}

/* The 64-bit products of the lower halves of the words. */
LANES_INLINE vw lanes_multiply_wide(vw a, vw b)
{
    return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

LANES_INLINE vw lanes_xor(vw a, vw b, vw c)
{
    return (vw)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
}

LANES_INLINE __m128 lanes_fold(const vf x[LANES_PARTS])
{
    __m256 eight = _mm512_castps512_ps256(x[0]) + _mm512_extractf32x8_ps(x[0], 1);
    return _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
}

#else

LANES_INLINE vw lanes_xor(vw a, vw b, vw c)
{
    return a ^ b ^ c;
}

LANES_INLINE vf lanes_select(vi choice, vf x)
{
    return (vf)(choice & (vi)x);
}

LANES_INLINE vf lanes_keep(uint32_t mask, vf x)
{
    static const uint32_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    vu bit = lanes_load_u32(bits);
    return lanes_select((lanes_set_u32(mask) & bit) == bit, x);
}

LANES_INLINE vf lanes_where_less(vf a, vf b, vf x)
{
    return lanes_select(a < b, x);
}

LANES_INLINE vf lanes_where_not_less(vf a, vf b, vf x)
{
    return lanes_select(~(a < b), x);
}

#if defined(__AVX2__)

LANES_INLINE vf lanes_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

LANES_INLINE vf lanes_sqrt(vf x)
{
    return _mm256_sqrt_ps(x);
}

LANES_INLINE vf lanes_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

LANES_INLINE vf lanes_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

LANES_INLINE uint32_t lanes_above_bits(vu a, vu b)
{
    return (uint32_t)_mm256_movemask_ps((__m256)(a > b));
}

LANES_INLINE vw lanes_multiply_wide(vw a, vw b)
{
    return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

LANES_INLINE __m128 lanes_fold(const vf x[LANES_PARTS])
{
    __m256 eight = x[0] + x[1];
    return _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
}

#else

/* a b + c in double, rounded to odd, so that rounding it to float afterwards is the one rounding that fma
 * makes (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Comp. 2008). The
 * product of two floats is exact in double, and Knuth's two-sum tells the error of adding c. */
LANES_INLINE __m128d lanes_fma_to_odd(__m128d a, __m128d b, __m128d c)
{
    typedef int64_t words __attribute__((vector_size(16)));
    __m128d product = a * b, sum = product + c, back = sum - product;
    __m128d error = (product - (sum - back)) + (c - back);
    words bits = (words)sum;
    words inexact = (words)(error < 0) | (words)(error > 0); // neither for a NaN: infinities stay
    words even = (bits & 1) - 1;
    words away = 1 - 2 * (words)_mm_srli_epi64((__m128i)(bits ^ (words)error), 63);
    return (__m128d)(bits + (away & inexact & even));
}

LANES_INLINE vf lanes_fma(vf a, vf b, vf c)
{
    __m128d low = lanes_fma_to_odd(_mm_cvtps_pd(a), _mm_cvtps_pd(b), _mm_cvtps_pd(c));
    __m128d high = lanes_fma_to_odd(_mm_cvtps_pd(_mm_movehl_ps(a, a)), _mm_cvtps_pd(_mm_movehl_ps(b, b)),
                                    _mm_cvtps_pd(_mm_movehl_ps(c, c)));
    return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}

LANES_INLINE vf lanes_sqrt(vf x)
{
    return _mm_sqrt_ps(x);
}

LANES_INLINE vf lanes_max(vf a, vf b)
{
    return _mm_max_ps(a, b);
}

LANES_INLINE vf lanes_min(vf a, vf b)
{
    return _mm_min_ps(a, b);
}

LANES_INLINE uint32_t lanes_above_bits(vu a, vu b)
{
    return (uint32_t)_mm_movemask_ps((__m128)(a > b));
}

LANES_INLINE vw lanes_multiply_wide(vw a, vw b)
{
    return (vw)_mm_mul_epu32((__m128i)a, (__m128i)b);
}

LANES_INLINE __m128 lanes_fold(const vf x[LANES_PARTS])
{
    return (x[0] + x[2]) + (x[1] + x[3]);
}

#endif
#endif

/* The sum of 16 lanes as the tree that halves them: lane i + lane i+8, then i+4, i+2, i+1. */
LANES_INLINE float lanes_sum(const vf x[LANES_PARTS])
{
    __m128 four = lanes_fold(x);
    __m128 two = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(two) + _mm_cvtss_f32(_mm_shuffle_ps(two, two, 1));
}

/* e^r of an x = n ln 2 + r with |r| <= ln(2)/2; `shifted` holds n in its low bits. ln 2 is in two pieces
 * (Cody and Waite) of which the first has zeros enough at its end that n times it is exact. e^r by its Taylor
 * series, whose next term is under 2^-27. */
LANES_INLINE vf lanes_exp_rest(vf x, vf *shifted)
{
    const vf round = lanes_set(0x1.8p23f); // adding it leaves the integer in the low bits
    *shifted = lanes_fma(x, lanes_set(0x1.715476p+0f), round);
    vf n = *shifted - round;
    vf r = lanes_fma(n, lanes_set(-0x1.62e400p-1f), x);
    r = lanes_fma(n, lanes_set(-0x1.7f7d1cp-20f), r);
    vf sum = lanes_fma(r, lanes_set(1.0f / 5040), lanes_set(1.0f / 720));
    sum = lanes_fma(r, sum, lanes_set(1.0f / 120));
    sum = lanes_fma(r, sum, lanes_set(1.0f / 24));
    sum = lanes_fma(r, sum, lanes_set(1.0f / 6));
    sum = lanes_fma(r, sum, lanes_set(0.5f));
    sum = lanes_fma(r, sum, lanes_set(1.0f));
    return lanes_fma(r, sum, lanes_set(1.0f));
}

/* e^x for x <= 0: at most 1 ulp from the true value down to x = -87, and 0 below; NaN stays NaN. For any x:
 * kernels/lanes/exp_log_tanh.h. */
LANES_INLINE vf lanes_exp(vf x)
{
    vf shifted, rest = lanes_exp_rest(lanes_max(lanes_set(-87.0f), x), &shifted);
    vf power = (vf)(((vu)shifted << 23) + 0x3f800000u);
    return lanes_where_not_less(x, lanes_set(-87.0f), rest * power);
}

/* log(x) for positive normal x, within 2 ulp. x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and with
 * s = f / (2 + f) the series log(1 + f) = f - f^2/2 + s (f^2/2 + 2/3 s^2 + 2/5 s^4 + 2/7 s^6 + …), which
 * keeps the small second part away from f's own bits (K. C. Ng's form of it, in fdlibm). */
LANES_INLINE vf lanes_log(vf x)
{
    const uint32_t sqrt_half = 0x3f3504f3;
    vu above = (vu)x - sqrt_half;
    vf n = __builtin_convertvector((vi)above >> 23, vf);
    vf f = (vf)((above & 0x7fffffu) + sqrt_half) - 1.0f;
    vf s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
    vf tail = lanes_fma(z, lanes_set(2.0f / 9), lanes_set(2.0f / 7));
    tail = lanes_fma(z, tail, lanes_set(2.0f / 5));
    tail = lanes_fma(z, tail, lanes_set(2.0f / 3));
    tail = z * tail;
    vf small = lanes_fma(s, half + tail, n * lanes_set(0x1.7f7d1cp-20f));
    return lanes_fma(n, lanes_set(0x1.62e400p-1f), f - (half - small));
}

/* Philox4x32-10 (Salmon et al., SC11) of LANES_WIDTH counters at once. A 32-bit product is as wide as two
 * lanes, so even and odd lanes are computed apart, as words of which only the lower halves count: a product
 * reads no more, and what else gathers in the upper halves is cut off at the end. */
enum { LANES_PHILOX_ROUNDS = 10 };
#define LANES_PHILOX_M0 0xd2511f53u
#define LANES_PHILOX_M1 0xcd9e8d57u
#define LANES_PHILOX_W0 0x9e3779b9u
#define LANES_PHILOX_W1 0xbb67ae85u

LANES_INLINE vw lanes_set_word(uint64_t x)
{
    return (vw){} + x;
}

/* Rounds `round` to the last on one half of the lanes, the keys still those of round 0. */
LANES_INLINE void lanes_philox_rounds(vw c[4], uint32_t key0, uint32_t key1, uint32_t round)
{
#pragma GCC unroll 10
    for (; round < LANES_PHILOX_ROUNDS; round++) {
        vw product0 = lanes_multiply_wide(c[0], lanes_set_word(LANES_PHILOX_M0));
        vw product1 = lanes_multiply_wide(c[2], lanes_set_word(LANES_PHILOX_M1));
        c[0] = lanes_xor(product1 >> 32, c[1], lanes_set_word(key0 + round * LANES_PHILOX_W0));
        c[2] = lanes_xor(product0 >> 32, c[3], lanes_set_word(key1 + round * LANES_PHILOX_W1));
        c[1] = product1;
        c[3] = product0;
    }
}

LANES_INLINE vu lanes_join(vw even, vw odd)
{
    return (vu)((even & 0xffffffffu) | odd << 32);
}

/* Word w of lane i's counter in lane i of c[w], and so the result. */
LANES_INLINE void lanes_philox(vu c[4], uint32_t key0, uint32_t key1)
{
    vw even[4], odd[4];
    for (int w = 0; w < 4; w++) {
        even[w] = (vw)c[w];
        odd[w] = (vw)c[w] >> 32;
    }
    lanes_philox_rounds(even, key0, key1, 0);
    lanes_philox_rounds(odd, key0, key1, 0);
    for (int w = 0; w < 4; w++)
        c[w] = lanes_join(even[w], odd[w]);
}

/* The same where the lanes differ in word 0 alone, `first` + lane: what is one number for all lanes in the
 * first two rounds is computed once, which saves a tenth. */
LANES_INLINE void lanes_philox_row(vu c[4], uint32_t first, uint32_t c1, uint32_t c2, uint32_t c3,
                                   uint32_t key0, uint32_t key1)
{
    const vw index = (vw)lanes_index(first);
    const uint64_t product1 = (uint64_t)LANES_PHILOX_M1 * c2;
    const uint32_t s0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0, s1 = (uint32_t)product1;
    const uint64_t next0 = (uint64_t)LANES_PHILOX_M0 * s0;
    vw half[2][4] = {{index}, {index >> 32}};
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        vw product0 = lanes_multiply_wide(half[h][0], lanes_set_word(LANES_PHILOX_M0));
        vw s2 = (product0 >> 32) ^ lanes_set_word(c3 ^ key1);
        vw next1 = lanes_multiply_wide(s2, lanes_set_word(LANES_PHILOX_M1));
        half[h][0] = (next1 >> 32) ^ lanes_set_word(s1 ^ (key0 + LANES_PHILOX_W0));
        half[h][1] = next1;
        half[h][2] = product0 ^ lanes_set_word((next0 >> 32) ^ (key1 + LANES_PHILOX_W1));
        half[h][3] = lanes_set_word(next0);
        lanes_philox_rounds(half[h], key0, key1, 2);
    }
    for (int w = 0; w < 4; w++)
        c[w] = lanes_join(half[0][w], half[1][w]);
}

/* The keep bits of dropout's units 128 group … + 127: bit l of bits[v] is unit 16 v + l (kernels/policy/mlp.h
 * says which bits of which block). `bound`: a 32-bit word with a unit's 16 bits on top is above it: kept. */
LANES_INLINE void lanes_draw_group(uint32_t bits[8], const struct rng_key *key, uint32_t group, vu bound)
{
    memset(bits, 0, 8 * sizeof *bits);
    for (uint32_t p = 0; p < LANES_PARTS; p++) {
        const uint32_t first = (uint32_t)RNG_DROPOUT << RNG_STREAM_SHIFT | (group * 16 + p * LANES_WIDTH);
        vu c[4];
        lanes_philox_row(c, first, key->environment, key->step, key->episode, (uint32_t)key->seed,
                         (uint32_t)(key->seed >> 32));
        for (int w = 0; w < 4; w++) {
            bits[2 * w] |= lanes_above_bits(c[w] << 16, bound) << (p * LANES_WIDTH);
            bits[2 * w + 1] |= lanes_above_bits(c[w], bound) << (p * LANES_WIDTH);
        }
    }
}

#endif

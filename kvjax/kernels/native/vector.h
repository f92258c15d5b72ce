// A register of float32 at a time, from float32, float16 and bfloat16 memory, in vectors of GCC and Clang.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvjax {

// Below every score, and finite: exp(-inf - LOW) is 0 and not NaN.
constexpr float LOW = -1e30f;

// As many numbers as one register holds: a wider vector would go through memory.
#if defined(__AVX512F__)
constexpr int WIDTH = 16;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
#else
constexpr int WIDTH = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Shorts __attribute__((vector_size(2 * WIDTH)));
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInts __attribute__((vector_size(16)));

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <class To, class From>
inline To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

template <class To>
inline To unaligned(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof(To));
  return to;
}

inline Vec load(const float* from) { return unaligned<Vec>(from); }

// What compilers do not find in a conversion of vectors has an intrinsic.
inline Words widened(const uint16_t* from) {
#if defined(__AVX512F__)
  return bits_of<Words>(_mm512_cvtepu16_epi32(unaligned<__m256i>(from)));
#elif defined(__AVX2__)
  return bits_of<Words>(_mm256_cvtepu16_epi32(unaligned<__m128i>(from)));
#else
  return __builtin_convertvector(unaligned<Shorts>(from), Words);
#endif
}

inline Vec load(const BFloat16* from) { return bits_of<Vec>(widened(&from->bits) << 16); }

inline Vec load(const Float16* from) {
#if defined(__AVX512F__)
  return bits_of<Vec>(_mm512_cvtph_ps(unaligned<__m256i>(from)));
#elif defined(__AVX2__) && defined(__F16C__)
  return bits_of<Vec>(_mm256_cvtph_ps(unaligned<__m128i>(from)));
#else
  // The exponent moved from bias 15 to 127; subnormals become normal by a subtraction, because threads may flush them.
  const Words half = widened(&from->bits), exponent = half & 0x7c00u, moved = (half & 0x7fffu) << 13;
  const Words normal = moved + (exponent == 0x7c00u ? Words{} + 0x70000000u : Words{} + 0x38000000u);
  const Vec small = bits_of<Vec>(moved + 0x38800000u) - bits_of<float>(uint32_t(0x38800000u));
  const Words found = exponent == 0u ? bits_of<Words>(small) : normal;
  return bits_of<Vec>(found | (half & 0x8000u) << 16);
#endif
}

// Held in a register: read once, where the compiler would rather read it again with every product.
template <class Register>
inline Register held(Register x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#endif
  return x;
}

template <class T, class Register>
inline void store(T* to, const Register& x) {
  std::memcpy(to, &x, sizeof(x));
}
// sum += *factor * numbers. The factor is an operand in memory where instructions take one, and needs no register: compilers would
// rather read it once for several products, and then keep a sum in memory.
inline void add_product(Vec& sum, const float* factor, const Vec& numbers) {
#if defined(__AVX512F__)
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(numbers), "m"(*factor));
#else
  sum += *factor * numbers;
#endif
}

// Less zero, which compilers leave out; plus zero they must not, because of -0.
inline Vec all(float x) { return x - Vec{}; }

// Before a loop of a few times over an array of registers: written out early, so that the array is registers. GCC leaves it in
// memory where loads that may alias it (those of 16-bit numbers) stand between.
#if defined(__clang__)
#define KVJAX_UNROLL _Pragma("unroll")
#else
#define KVJAX_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(__clang__)
#define KVJAX_SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define KVJAX_SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, type{__VA_ARGS__})
#endif
// Numbers of two vectors, by their places in the first and, after them, the second.
#define KVJAX_PICK(a, b, ...) KVJAX_SHUFFLE(QuadInts, a, b, __VA_ARGS__)
#define KVJAX_WIDE(a, b, ...) KVJAX_SHUFFLE(Ints, a, b, __VA_ARGS__)

// Every fourth number added up.
inline Quad folded(const Vec& x) {
  Quad parts[WIDTH / 4];
  std::memcpy(parts, &x, sizeof(x));
  if constexpr (WIDTH == 16) return (parts[0] + parts[2]) + (parts[1] + parts[3]);
  if constexpr (WIDTH == 8) return parts[0] + parts[1];
  return parts[0];
}

// The sums of as many vectors as a vector has numbers, in two steps, so that few of them wait in registers: first of four.
#if defined(__AVX512F__)
using Quarter = Vec;
// Within each quarter of the vectors their sums, a, b, c and d.
inline Quarter quarter(const Vec& a, const Vec& b, const Vec& c, const Vec& d) {
  const auto halved = [](const Vec& x, const Vec& y) {
    return KVJAX_WIDE(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
           KVJAX_WIDE(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  };
  const Vec x = halved(a, b), y = halved(c, d);
  return KVJAX_WIDE(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         KVJAX_WIDE(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
inline Vec sums(const Quarter (&x)[4]) {
  const auto halved = [](const Vec& a, const Vec& b) {
    return KVJAX_WIDE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           KVJAX_WIDE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  };
  return halved(halved(x[0], x[1]), halved(x[2], x[3]));
}
#else
using Quarter = Quad;
inline Quarter quarter(const Vec& a, const Vec& b, const Vec& c, const Vec& d) {
  const Quad p = folded(a), q = folded(b), r = folded(c), s = folded(d);
  const Quad pq = KVJAX_PICK(p, q, 0, 4, 2, 6) + KVJAX_PICK(p, q, 1, 5, 3, 7);
  const Quad rs = KVJAX_PICK(r, s, 0, 4, 2, 6) + KVJAX_PICK(r, s, 1, 5, 3, 7);
  return KVJAX_PICK(pq, rs, 0, 1, 4, 5) + KVJAX_PICK(pq, rs, 2, 3, 6, 7);
}
inline Vec sums(const Quarter (&x)[WIDTH / 4]) { return bits_of<Vec>(x); }
#endif

inline float sum(const Vec& x) {
  const Quad part = folded(x);
  return (part[0] + part[1]) + (part[2] + part[3]);
}

inline Vec larger(const Vec& a, const Vec& b) { return a > b ? a : b; }

// exp(x) for x <= 0, to 2 units in the last place; 0 below -87. Cephes' polynomial after a reduction by ln 2 in two parts.
inline Vec exponential(const Vec& x) {
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const Vec shifted = x * 1.44269504088896341f + ROUND;
  const Vec n = shifted - ROUND;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Ints power = (bits_of<Ints>(shifted) - bits_of<int32_t>(ROUND) + 127) << 23;
  const Vec found = p * bits_of<Vec>(power);
  return x <= -87.0f ? Vec{} : found;  // of NaN NaN
}

// n numbers as float32.
template <class T>
void numbers(const T* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(to + i, load(from + i));
  if (i == n) return;
  T rest[WIDTH] = {};
  std::memcpy(rest, from + i, (n - i) * sizeof(T));
  const Vec last = load(rest);
  std::memcpy(to + i, &last, (n - i) * sizeof(float));
}

// n numbers as float32: where they lie, if they are that, else converted into `room`.
inline const float* as_floats(const float* from, int64_t, float*) { return from; }
template <class T>
const float* as_floats(const T* from, int64_t n, float* room) {
  numbers(from, n, room);
  return room;
}

}  // namespace kvjax

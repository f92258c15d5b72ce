// The fewest probabilities that reach a share of the mass, as an XLA custom call. Definition: select_top_p/api.py.
#include <memory>

#include "operands.h"
#include "parallel.h"
#include "softmax.h"

namespace kvjax {
namespace {

// What a float32 sum may lack of tau and still count as reaching it.
constexpr double SLOP = 1e-6;
// The 30 bits of a probability, ten at a time.
constexpr int DIGIT = 10, BINS = 1 << DIGIT;

inline int32_t pattern(float p) { return bits_of<int32_t>(p) & 0x3fffffff; }

struct Cut {
  float value;     // the least probability taken
  int64_t equals;  // how many that are equal to it
};

inline int digit(float p, int shift) { return pattern(p) >> shift & (BINS - 1); }

// The mass of each digit. Neighbours are added in tables of their own: one that waits for the other's sum would stand in line.
void histogram(const float* p, int64_t n, int shift, double (&mass)[BINS]) {
  double tables[2][BINS] = {};
  for (int64_t i = 0; i + 2 <= n; i += 2)
    for (int j = 0; j < 2; ++j) tables[j][digit(p[i + j], shift)] += p[i + j];
  if (n % 2) tables[0][digit(p[n - 1], shift)] += p[n - 1];
  for (int bin = 0; bin < BINS; ++bin) mass[bin] = tables[0][bin] + tables[1][bin];
}

// Digit by digit, the greatest value whose probabilities and all larger ones reach `goal`; everything where they never do.
Cut cut_at(const float* p, int64_t n, double goal) {
  std::unique_ptr<float[]> inside(new float[n]);
  double above = 0, mass[BINS];
  int32_t found = 0;
  int64_t count = n;
  for (int shift = 2 * DIGIT; shift >= 0; shift -= DIGIT) {
    const float* from = shift == 2 * DIGIT ? p : inside.get();
    histogram(from, count, shift, mass);
    int bin = BINS - 1;
    for (; bin >= 0 && above + mass[bin] < goal; --bin) above += mass[bin];
    if (bin < 0) return {0, n};
    found |= bin << shift;
    int64_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float number = from[i];
      inside[next] = number;  // written over unless it counts: no branch
      next += digit(number, shift) == bin;
    }
    count = next;
  }
  const float value = bits_of<float>(found);
  return {value, value > 0 ? int64_t(std::ceil((goal - above) / value)) : n};
}

void keep(float* p, int64_t n, const Cut& cut) {
  int64_t equals = 0;
  for (int64_t i = 0; i < n; ++i) {
    equals += p[i] == cut.value;
    p[i] = p[i] < cut.value ? 0 : p[i];
  }
  for (int64_t i = n - 1; equals > cut.equals && i >= 0; --i)
    if (p[i] == cut.value) p[i] = 0, --equals;
}

ffi::Error SelectMass(ffi::ThreadPool pool, F32<5> scores, F32<0> tau, ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse) {
  const int64_t n = scores.dimensions()[4];
  const double goal = tau.typed_data()[0] - SLOP;
  each_item(pool, lse->element_count(), [&](int64_t row) {
    float* mine = out->typed_data() + row * n;
    lse->typed_data()[row] = probabilities(scores.typed_data() + row * n, n, mine);
    keep(mine, n, cut_at(mine, n, goal));
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_select_top_p, SelectMass,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<F32<5>>().Arg<F32<0>>().Ret<F32<5>>().Ret<F32<4>>());

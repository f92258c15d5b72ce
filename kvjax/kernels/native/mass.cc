// The fewest probabilities that reach a share of the mass, as an XLA custom call. Definition: select_mass/api.py.
#include <vector>

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

// Digit by digit, the greatest value whose probabilities and all larger ones reach `goal`; everything where they never do.
Cut cut_at(const float* p, int64_t n, double goal) {
  std::vector<float> inside, next;
  double above = 0;
  int32_t found = 0;
  for (int shift = 2 * DIGIT; shift >= 0; shift -= DIGIT) {
    const float* from = shift == 2 * DIGIT ? p : inside.data();
    const int64_t count = shift == 2 * DIGIT ? n : int64_t(inside.size());
    double mass[BINS] = {};
    for (int64_t i = 0; i < count; ++i) mass[pattern(from[i]) >> shift & (BINS - 1)] += from[i];
    int bin = BINS - 1;
    for (; bin >= 0 && above + mass[bin] < goal; --bin) above += mass[bin];
    if (bin < 0) return {0, n};
    found |= bin << shift;
    next.clear();
    for (int64_t i = 0; i < count; ++i)
      if ((pattern(from[i]) >> shift & (BINS - 1)) == bin) next.push_back(from[i]);
    inside.swap(next);
  }
  const float value = bits_of<float>(found);
  return {value, value > 0 ? int64_t(std::ceil((goal - above) / value)) : n};
}

void keep(float* p, int64_t n, const Cut& cut) {
  int64_t equals = 0;
  for (int64_t i = 0; i < n; ++i) {
    equals += p[i] == cut.value;
    if (p[i] < cut.value || (p[i] == cut.value && equals > cut.equals)) p[i] = 0;
  }
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_select_mass, SelectMass,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<F32<5>>().Arg<F32<0>>().Ret<F32<5>>().Ret<F32<4>>());

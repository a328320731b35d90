/* stand-in until the real one */
#include "kernels/policy/squashed.h"
#include <math.h>
#include <stdlib.h>
struct squashed { uint32_t a; };
enum status squashed_new(struct squashed **out, uint32_t components, struct error *error) { (void)error; *out = malloc(sizeof **out); (*out)->a = components; return STATUS_OK; }
void squashed_free(struct squashed *s) { free(s); }
void squashed_act(const struct squashed *s, uint32_t rows, struct dense_matrix z, const float *noise, struct dense_matrix actions, float *lp) { for (uint32_t r = 0; r < rows; r++) { double sum = 0; for (uint32_t d = 0; d < s->a; d++) { const double m = z.at[r * z.stride + d], raw = z.at[r * z.stride + s->a + d], ls = isnan(raw) ? raw : fmax(-20, fmin(2, raw)), n = noise ? noise[r * s->a + d] : 0; const double t = tanh(m + exp(ls) * n); actions.at[r * actions.stride + d] = (float)t; sum += -n * n / 2 - ls - 0.9189385332046727 - log(1 - t * t + 1e-6); } if (lp) lp[r] = (float)sum; } }
void squashed_pull(const struct squashed *s, uint32_t rows, struct dense_matrix z, const float *noise, struct dense_matrix actions, struct dense_matrix da, float dl, struct dense_matrix dz) { for (uint32_t r = 0; r < rows; r++) for (uint32_t d = 0; d < s->a; d++) { const double raw = z.at[r * z.stride + s->a + d], ls = fmax(-20, fmin(2, raw)), n = noise[r * s->a + d], t = actions.at[r * actions.stride + d], c = 1 - t * t; const double dx = da.at[r * da.stride + d] * c + dl * 2 * t * c / (c + 1e-6); dz.at[r * dz.stride + d] = (float)dx; dz.at[r * dz.stride + s->a + d] = raw < -20 || raw > 2 ? 0 : (float)(dx * exp(ls) * n - dl); } }

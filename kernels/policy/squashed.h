#ifndef KERNELS_POLICY_SQUASHED_H
#define KERNELS_POLICY_SQUASHED_H
#include "kernels/policy/layers.h"
struct squashed;
enum status squashed_new(struct squashed **out, uint32_t components, struct error *error);
void squashed_free(struct squashed *s);
void squashed_act(const struct squashed *s, uint32_t rows, struct dense_matrix z, const float *noise, struct dense_matrix actions, float *log_probability);
void squashed_pull(const struct squashed *s, uint32_t rows, struct dense_matrix z, const float *noise, struct dense_matrix actions, struct dense_matrix d_actions, float d_log_probability, struct dense_matrix dz);
#endif

/* stub */
#ifndef KERNELS_POLICY_LAYERS_H
#define KERNELS_POLICY_LAYERS_H
#include "kernels/policy/dense.h"
#include "kernels/policy/lanes_internal.h"
enum layers_last { LAYERS_LINEAR, LAYERS_ACTIVATED, LAYERS_TANH };
struct layers_shape {
    uint32_t inputs, outputs, layers, width[DENSE_LAYERS_MAX];
    enum dense_activation activation; enum layers_last last;
    bool pulls_inputs;
    bool forward_only;
};
struct layers; struct layers_work;
size_t layers_parameters(const struct layers_shape *shape);
enum status layers_new(struct layers **out, const struct layers_shape *shape, struct error *error);
void layers_free(struct layers *layers);
void layers_load(struct layers *layers, const float *parameters);
enum status layers_work_new(struct layers_work **out, const struct layers *layers, struct error *error);
void layers_work_free(struct layers_work *work);
struct dense_matrix layers_forward(const struct layers *layers, struct layers_work *work, uint32_t rows, struct dense_matrix inputs);
void layers_backward(const struct layers *layers, struct layers_work *work, struct dense_matrix pull, float *gradient, bool adds, struct dense_matrix to);
#endif

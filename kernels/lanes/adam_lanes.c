/* Adam's update in vectors. The last elements, fewer than a vector, are padded to one. */
#include "kernels/lanes/adam_lanes.h"

#include "kernels/lanes/lanes.h"

LANES_INLINE void update(const struct adam_factors *f, float *parameters, float *first, float *second,
                         const float *gradient)
{
    const vf g = lanes_load(gradient);
    const vf m = lanes_set(f->keep_m) * lanes_load(first) + lanes_set(f->add_m) * g;
    const vf v = lanes_set(f->keep_v) * lanes_load(second) + lanes_set(f->add_v) * g * g;
    const vf root = lanes_sqrt(v) / lanes_set(f->root_correction) + lanes_set(f->epsilon);
    lanes_store(first, m);
    lanes_store(second, v);
    lanes_store(parameters, lanes_load(parameters) - lanes_set(f->step_size) * m / root);
}

void LANES_NAME(adam_lanes_update)(const struct adam_factors *f, float *parameters, float *first,
                                   float *second, const float *gradient, size_t count)
{
    const size_t whole = count - count % LANES_WIDTH, bytes = (count - whole) * sizeof(float);
    for (size_t i = 0; i < whole; i += LANES_WIDTH)
        update(f, parameters + i, first + i, second + i, gradient + i);
    float rest[4][LANES_WIDTH] = {0};
    memcpy(rest[0], parameters + whole, bytes);
    memcpy(rest[1], first + whole, bytes);
    memcpy(rest[2], second + whole, bytes);
    memcpy(rest[3], gradient + whole, bytes);
    update(f, rest[0], rest[1], rest[2], rest[3]);
    memcpy(parameters + whole, rest[0], bytes);
    memcpy(first + whole, rest[1], bytes);
    memcpy(second + whole, rest[2], bytes);
}

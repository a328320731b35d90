/* One dense layer: packs its weight, and calls the products. */
#include "kernels/policy/linear.h"

#include <string.h>

void linear_place(struct places *places, struct linear *layer, bool pulls)
{
    const size_t out_blocks = product_blocks(layer->outputs), in_blocks = product_blocks(layer->inputs);
    places_floats(places, &layer->begin, out_blocks * PRODUCT_BLOCK);
    places_floats(places, &layer->forward, out_blocks * layer->inputs * PRODUCT_BLOCK);
    if (pulls)
        places_floats(places, &layer->backward, in_blocks * layer->outputs * PRODUCT_BLOCK);
}

/* Both orders, 16 rows at a time: the second order finds them in the nearest cache. */
void linear_load_weight(const struct linear *layer, const float *weight)
{
    const uint32_t inputs = layer->inputs, outputs = layer->outputs;
    for (uint32_t first = 0; first < outputs; first += PRODUCT_BLOCK) {
        const uint32_t end = outputs - first < PRODUCT_BLOCK ? outputs : first + PRODUCT_BLOCK;
        panels_transpose(layer->forward + (size_t)first * inputs, weight + (size_t)first * inputs,
                         end - first, inputs);
        if (layer->backward != NULL)
            panels_pack(layer->backward, weight + (size_t)first * inputs, inputs, outputs, first,
                        end - first);
    }
}

void linear_load_bias(const struct linear *layer, const float *bias)
{
    memcpy(layer->begin, bias, layer->outputs * sizeof *layer->begin);
}

void linear_multiply(product_function *product, uint32_t rows, struct dense_matrix a, uint32_t width,
                     const float *panels, uint32_t depth, uint32_t skipped, uint32_t columns,
                     const float *begin, struct dense_matrix to)
{
    product(&(struct product){.rows = rows,
                              .depth = width,
                              .columns = columns,
                              .a = a.at,
                              .a_row = a.stride,
                              .a_depth = 1,
                              .b = panels + (size_t)skipped * PRODUCT_BLOCK,
                              .b_depth = PRODUCT_BLOCK,
                              .b_block = (size_t)depth * PRODUCT_BLOCK,
                              .begin = begin,
                              .c = to.at,
                              .c_row = to.stride});
}

void linear_forward(product_function *product, const struct linear *layer, struct dense_matrix x,
                    uint32_t rows, uint32_t first, uint32_t width, struct dense_matrix to)
{
    linear_multiply(product, rows, x, width, layer->forward, layer->inputs, first, layer->outputs,
                    first == 0 ? layer->begin : NULL, to);
}

void linear_pull(product_function *product, const struct linear *layer, struct dense_matrix pull,
                 uint32_t rows, const float *zeros, struct dense_matrix to)
{
    linear_multiply(product, rows, pull, layer->outputs, layer->backward, layer->outputs, 0, layer->inputs,
                    zeros, to);
}

void linear_add_bias(const struct summing *summing, const struct linear *layer, struct dense_matrix pull,
                     uint32_t rows, const float *ones, float *gradient, bool adds)
{
    const struct dense_matrix one = {(float *)(uintptr_t)ones, 1};
    summing_add(summing, rows, one, 1, pull, layer->outputs, gradient + layer->bias, 0, 1, adds);
}

void linear_add_weight(const struct summing *summing, const struct linear *layer, struct dense_matrix pull,
                       uint32_t rows, struct dense_matrix x, uint32_t first, uint32_t width, float *gradient,
                       bool adds)
{
    summing_add_weight(summing, rows, pull, layer->outputs, x, width, gradient + layer->weight + first,
                       layer->inputs, adds);
}

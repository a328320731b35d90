/* Every value goes out in canonical order, the layouts are adopted, and every value comes back. */
#include "test/kernels/params/reorder.h"

#include <stdio.h>
#include <stdlib.h>

static void must(enum status status, const struct error *error)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "reordering parameters: %s\n", error->text);
    abort();
}

/* One value for each entry: of the params (`parallel` NULL), or of a slab parallel to them. */
static void move(struct params *params, struct gradients *parallel, double *values, bool back)
{
    struct error error = {0};
    for (uint32_t i = 0; i < params_count(params); i++) {
        struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_TRAINED)
            continue;
        if (parallel == NULL)
            must(back ? params_write(params, parameter, DTYPE_F64, values, &error)
                      : params_read(params, parameter, DTYPE_F64, values, &error),
                 &error);
        else
            must(back ? gradients_write(parallel, parameter, DTYPE_F64, values, &error)
                      : gradients_read(parallel, parameter, DTYPE_F64, values, &error),
                 &error);
        values += shape_elements(&parameter->tensor.shape);
    }
}

static bool wants(struct params *params)
{
    bool any = false;
    for (uint32_t i = 0; i < params_count(params); i++) {
        const struct tensor *tensor = &params_at(params, i)->tensor;
        any = any || (tensor->wanted != NULL && tensor->wanted != tensor->layout);
    }
    return any;
}

void reorder_params(struct params *params, struct gradients *const parallels[], uint32_t count)
{
    const size_t elements = params_elements(params);
    if (!wants(params))
        return;
    double *values = calloc((size_t)(count + 1) * elements, sizeof *values);
    must(values != NULL ? STATUS_OK : STATUS_NO_MEMORY, &(struct error){.text = "no memory"});
    for (int back = 0; back < 2; back++) {
        if (back == 1)
            params_adopt(params);
        move(params, NULL, values, back == 1);
        for (uint32_t p = 0; p < count; p++)
            if (parallels[p] != NULL)
                move(params, parallels[p], values + (p + 1) * elements, back == 1);
    }
    free(values);
}

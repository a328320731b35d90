/* Parameters with values, brought into the layouts that the last forward asked for. The program finds its
 * layouts before there are values (params_adopt); tests and benchmarks that build a model first find them
 * afterwards. */
#ifndef TEST_KERNELS_PARAMS_REORDER_H
#define TEST_KERNELS_PARAMS_REORDER_H

#include "kernels/params/gradients.h"
#include "kernels/params/params.h"

/* Gives every trained entry the layout that it wants and keeps its value, and the values of `parallels`
 * (gradients, moments; NULLs are passed over). Other gradients of these params are to be overwritten whole.
 * Ends the program on a failure. */
void reorder_params(struct params *params, struct gradients *const parallels[], uint32_t count);

#endif

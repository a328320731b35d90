/* The CPU backend: layouts that pass from operation to operation, parameters that change, plans that are
 * made once, padding, the same bits twice on one thread and on two, indices out of range.
 *
 * The library's functions are wrapped here, so that a test can count the primitives that are made and run.
 * test_conformance checks the results of the operations. */
#include "kernels/params/optim.h"
#include "kernels/tape/tape.h"
#include "test/kernels/params/reorder.h"
#include "test/workplace.h"

#include <check.h>
#include <dlfcn.h>
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- counting ---- */

static struct {
    unsigned made;     // primitives, their descriptors, memory objects
    unsigned reorders; // executions
} count;

/* The library's own function behind the wrapper of that name. */
static void library(const char *name, void *function, size_t size)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    ck_assert_msg(symbol != NULL, "the library has no %s", name);
    memcpy(function, &symbol, size);
}

dnnl_status_t dnnl_primitive_create(dnnl_primitive_t *primitive, const_dnnl_primitive_desc_t descriptor)
{
    dnnl_status_t (*real)(dnnl_primitive_t *, const_dnnl_primitive_desc_t) = NULL;
    library("dnnl_primitive_create", &real, sizeof real);
    count.made++;
    return real(primitive, descriptor);
}

dnnl_status_t dnnl_primitive_desc_create(dnnl_primitive_desc_t *descriptor, const_dnnl_op_desc_t operation,
                                         const_dnnl_primitive_attr_t attributes, dnnl_engine_t engine,
                                         const_dnnl_primitive_desc_t hint)
{
    dnnl_status_t (*real)(dnnl_primitive_desc_t *, const_dnnl_op_desc_t, const_dnnl_primitive_attr_t,
                          dnnl_engine_t, const_dnnl_primitive_desc_t) = NULL;
    library("dnnl_primitive_desc_create", &real, sizeof real);
    count.made++;
    return real(descriptor, operation, attributes, engine, hint);
}

dnnl_status_t dnnl_memory_create(dnnl_memory_t *memory, const dnnl_memory_desc_t *desc, dnnl_engine_t engine,
                                 void *data)
{
    dnnl_status_t (*real)(dnnl_memory_t *, const dnnl_memory_desc_t *, dnnl_engine_t, void *) = NULL;
    library("dnnl_memory_create", &real, sizeof real);
    count.made++;
    return real(memory, desc, engine, data);
}

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int arguments,
                                     const dnnl_exec_arg_t *argument)
{
    dnnl_status_t (*real)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *) = NULL;
    const_dnnl_primitive_desc_t descriptor = NULL;
    dnnl_primitive_kind_t kind = dnnl_undefined_primitive;
    library("dnnl_primitive_execute", &real, sizeof real);
    ck_assert_int_eq(dnnl_primitive_get_primitive_desc(primitive, &descriptor), dnnl_success);
    ck_assert_int_eq(dnnl_primitive_desc_query(descriptor, dnnl_query_primitive_kind, 0, &kind),
                     dnnl_success);
    count.reorders += kind == dnnl_reorder;
    return real(primitive, stream, arguments, argument);
}

/* ---- a small network with everything that has a layout ---- */

enum { IMAGES = 3, CHANNELS = 16, WIDTH = 48, SIZE = 9, CLASSES = 5, CONVOLUTIONS = 3 };

static struct net {
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct parameter *convolution[CONVOLUTIONS], *scale[CONVOLUTIONS], *shift[CONVOLUTIONS];
    struct parameter *weight, *bias;
    struct error error;
} net;

static void ok(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", status_name(status), net.error.text);
}

static void backend_on(uint32_t threads)
{
    const struct backend_settings settings = {.threads = threads};
    net = (struct net){0};
    ok(backend_load(&net.backend, "onednn", &settings, &net.error));
    ok(tape_new(&net.tape, net.backend, &net.error));
    arena_poison(tape_arena(net.tape), true);
}

static struct parameter *add(const char *name, struct shape shape, enum init_kind kind, double value)
{
    struct parameter *parameter = NULL;
    ok(params_add(net.params, name, PARAMETER_TRAINED, shape, (struct init){kind, value}, &parameter,
                  &net.error));
    return parameter;
}

static void net_open(uint32_t threads)
{
    const struct optimizer_settings sgd = {.kind = OPTIMIZER_SGD, .sgd = {.lr = 0.02, .momentum = 0.5}};
    backend_on(threads);
    ok(params_new(&net.params, net.backend, &net.error));
    for (uint32_t i = 0; i < CONVOLUTIONS; i++) {
        char name[32];
        snprintf(name, sizeof name, "convolution%u", i);
        const struct shape shape = SHAPE4(WIDTH, i == 0 ? CHANNELS : WIDTH, 3, 3);
        net.convolution[i] = add(name, shape, INIT_NORMAL, 0.1);
        snprintf(name, sizeof name, "scale%u", i);
        net.scale[i] = add(name, SHAPE1(WIDTH), INIT_CONSTANT, 1);
        snprintf(name, sizeof name, "shift%u", i);
        net.shift[i] = add(name, SHAPE1(WIDTH), INIT_CONSTANT, 0);
    }
    net.weight = add("weight", SHAPE2(CLASSES, WIDTH), INIT_UNIFORM, 0.2);
    net.bias = add("bias", SHAPE1(CLASSES), INIT_CONSTANT, 0);
    ok(params_build(net.params, 7, &net.error));
    ok(gradients_new(&net.gradients, net.params, &net.error));
    ok(optimizer_new(&net.optimizer, &sgd, net.params, &net.error));
}

static void net_close(void)
{
    tape_free(net.tape);
    optimizer_free(net.optimizer);
    gradients_free(net.gradients);
    params_free(net.params);
    backend_close(net.backend);
}

static struct variable *layer(struct variable *x, uint32_t i, bool relu)
{
    struct variable *h = tape_conv2d(net.tape, x, tape_parameter(net.tape, net.convolution[i]), NULL, 1, 1);
    return tape_batch_norm(net.tape, h, tape_parameter(net.tape, net.scale[i]),
                           tape_parameter(net.tape, net.shift[i]), NULL, NULL, true, 1e-5, relu, NULL);
}

/* Forward and walk; the loss. */
static double net_walk(void)
{
    static float images[IMAGES * CHANNELS * SIZE * SIZE];
    static const int32_t labels[IMAGES] = {0, 3, 4};
    double loss = 0;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        images[i] = (float)(i * 2654435761u % 1999) / 1000 - 1;
    tape_begin(net.tape, TAPE_TRAIN, net.gradients);
    struct variable *x =
        tape_input(net.tape, SHAPE4(IMAGES, CHANNELS, SIZE, SIZE), DTYPE_F32, "images", images);
    struct variable *first = layer(x, 0, true);
    struct variable *second = layer(layer(first, 1, true), 2, false);
    struct variable *sum = tape_add(net.tape, second, first, true);
    struct variable *pooled = tape_global_avg_pool(net.tape, tape_max_pool(net.tape, sum, 3, 2, 1));
    struct variable *logits = tape_linear(net.tape, pooled, tape_parameter(net.tape, net.weight),
                                          tape_parameter(net.tape, net.bias));
    struct variable *target = tape_input(net.tape, SHAPE1(IMAGES), DTYPE_I32, "labels", labels);
    struct variable *mean = tape_cross_entropy(net.tape, logits, target);
    tape_loss(net.tape, mean, &loss);
    tape_backward(net.tape, mean);
    ok(tape_status(net.tape, &net.error));
    return loss;
}

static void reorder(void)
{
    struct gradients *const parallels[] = {net.gradients, optimizer_moment(net.optimizer, 0)};
    reorder_params(net.params, parallels, 2);
}

static double net_step(void)
{
    const double loss = net_walk();
    ok(optimizer_step(net.optimizer, net.gradients, &net.error));
    ok(tape_finish(net.tape, &net.error));
    reorder();
    return loss;
}

/* The first step learns which layouts the weights had better have, the second makes plans for those. From
 * then on nothing is made. Of what moves between layouts there is left: the images going in (one, unless the
 * library reads them as they are), each convolution's weight for its backward-data but the first's, and the
 * pool's result leaving its blocks (none, for 1x1 images of 48 channels lie canonical). */
START_TEST(layouts_pass_and_plans_are_made_once)
{
    net_open((uint32_t)_i + 1);
    net_step();
    net_step();
    ck_assert_uint_gt(count.made, 100);
    ck_assert_uint_gt(count.reorders, 0);
    count.made = count.reorders = 0;
    net_step();
    ck_assert_uint_eq(count.made, 0);
    const unsigned images_in = 2; // for the forward, and again for its weights' gradient
    if (dnnl_get_effective_cpu_isa() < dnnl_cpu_isa_avx2) {
        printf("reorders are not counted: without AVX2 the library has no one layout for all passes\n");
        return;
    }
    ck_assert_uint_le(count.reorders, CONVOLUTIONS - 1 + images_in);
    net_close();
}
END_TEST

static double *values_of(const struct parameter *parameter, bool gradient)
{
    double *values = calloc(shape_elements(&parameter->tensor.shape), sizeof *values);
    ck_assert_ptr_nonnull(values);
    if (gradient)
        ok(gradients_read(net.gradients, parameter, DTYPE_F64, values, &net.error));
    else
        ok(params_read(net.params, parameter, DTYPE_F64, values, &net.error));
    return values;
}

/* A weight in blocks gives the gradients that a canonical one gives. */
START_TEST(reordered_weights_learn_the_same)
{
    net_open(1);
    net_walk();
    double *before[CONVOLUTIONS];
    for (int i = 0; i < CONVOLUTIONS; i++)
        before[i] = values_of(net.convolution[i], true);
    ok(tape_finish(net.tape, &net.error));
    reorder();
    net_walk();
    for (int i = 0; i < CONVOLUTIONS; i++) {
        double *after = values_of(net.convolution[i], true);
        ck_assert_mem_eq(before[i], after, shape_elements(&net.convolution[i]->tensor.shape) * sizeof *after);
        free(after);
        free(before[i]);
    }
    ok(tape_finish(net.tape, &net.error));
    net_close();
}
END_TEST

enum { STEPS = 4 };

static double *losses_on(uint32_t threads)
{
    double *losses = calloc(STEPS, sizeof *losses);
    ck_assert_ptr_nonnull(losses);
    net_open(threads);
    for (int i = 0; i < STEPS; i++)
        losses[i] = net_step();
    net_close();
    return losses;
}

START_TEST(the_same_bits_twice)
{
    double *first = losses_on((uint32_t)_i + 1), *second = losses_on((uint32_t)_i + 1);
    ck_assert_mem_eq(first, second, STEPS * sizeof *first);
    ck_assert_double_lt(first[STEPS - 1], first[0]);
    free(first);
    free(second);
}
END_TEST

/* Two backends of different width in one thread: each keeps its own, whichever was opened or ran last. */
START_TEST(widths_do_not_mix)
{
    double *one = losses_on(1), *two = losses_on(2);
    net_open(1);
    const struct net narrow = net;
    net_open(2);
    struct net wide = net;
    for (int i = 0; i < STEPS; i++) {
        net = narrow;
        ck_assert(net_step() == one[i]);
        net = wide;
        ck_assert(net_step() == two[i]);
    }
    net_close();
    net = narrow;
    net_close();
    free(one);
    free(two);
}
END_TEST

/* ---- padding ---- */

/* A convolution's result of 5 channels, in blocks of 16 where the library has them. */
static struct tensor odd_channels(struct arena *arena, struct tensor *x, struct tensor *weight)
{
    struct tensor y = {0};
    struct op_call call = {.op = OP_CONV2D, .arena = arena, .in = {x, weight}, .out = {&y}};
    call.attributes = (struct op_attributes){.stride = {1, 1}, .padding = {1, 1}};
    ok(op_forward(net.backend, &call, &net.error));
    return y;
}

START_TEST(padding_counts_for_nothing)
{
    double sum = 0, x_values[2 * 7 * 4 * 4], read[2 * 5 * 4 * 4];
    size_t index = 0;
    backend_on(2);
    struct arena *arena = tape_arena(net.tape);
    struct tensor x, weight;
    ok(tensor_new(&x, arena, SHAPE4(2, 7, 4, 4), DTYPE_F32, "x", &net.error));
    ok(tensor_new(&weight, arena, SHAPE4(5, 7, 3, 3), DTYPE_F32, "weight", &net.error));
    for (size_t i = 0; i < sizeof x_values / sizeof *x_values; i++)
        x_values[i] = (double)(i % 5) - 2;
    ok(backend_upload(net.backend, &x, DTYPE_F64, x_values, &net.error));
    ok(backend_fill(net.backend, &weight, 0.5, &net.error));
    struct tensor y = odd_channels(arena, &x, &weight), z = odd_channels(arena, &x, &weight);
    ok(backend_fill(net.backend, &y, 3, &net.error));
    ok(backend_square_sum(net.backend, &y, &sum, &net.error));
    ck_assert_double_eq(sum, 9 * 160);
    ok(backend_fill(net.backend, &z, 0.25, &net.error));
    struct tensor canonical;
    ok(tensor_new(&canonical, arena, y.shape, DTYPE_F32, "canonical", &net.error));
    ok(backend_fill(net.backend, &canonical, 1, &net.error));
    ok(backend_accumulate(net.backend, &y, &z, &net.error));
    ok(backend_accumulate(net.backend, &y, &canonical, &net.error));
    ok(backend_accumulate(net.backend, &canonical, &z, &net.error));
    ok(backend_scale(net.backend, &y, 2, &net.error));
    ok(backend_square_sum(net.backend, &y, &sum, &net.error));
    ck_assert_double_eq(sum, 8.5 * 8.5 * 160);
    ok(backend_square_sum(net.backend, &canonical, &sum, &net.error));
    ck_assert_double_eq(sum, 1.25 * 1.25 * 160);
    ok(backend_download(net.backend, &y, DTYPE_F64, read, &net.error));
    for (size_t i = 0; i < 160; i++)
        ck_assert_double_eq(read[i], 8.5);
    ok(backend_first_not_finite(net.backend, &y, &index, &net.error));
    ck_assert(index == SIZE_MAX);
    tape_free(net.tape);
    backend_close(net.backend);
}
END_TEST

/* suite_run flushes denormals, and each of OpenMP's threads inherits that. */
START_TEST(every_thread_flushes_denormals)
{
    enum { COUNT = 1 << 20 };
    uint32_t *bits = calloc(COUNT, sizeof *bits);
    struct tensor x;
    ck_assert_ptr_nonnull(bits);
    backend_on(2);
    ok(tensor_new(&x, tape_arena(net.tape), SHAPE1(COUNT), DTYPE_F32, "x", &net.error));
    ok(backend_fill(net.backend, &x, 0x1p-100, &net.error));
    ok(backend_scale(net.backend, &x, 0x1p-40, &net.error));
    ok(backend_download(net.backend, &x, DTYPE_F32, bits, &net.error));
    for (uint32_t i = 0; i < COUNT; i++)
        ck_assert_uint_eq(bits[i], 0);
    free(bits);
    tape_free(net.tape);
    backend_close(net.backend);
}
END_TEST

/* ---- shapes that come and go, and indices ---- */

/* More shapes than plans are kept, and the first one again. */
START_TEST(plans_are_forgotten_before_they_fill_the_memory)
{
    backend_on(1);
    struct arena *arena = tape_arena(net.tape);
    for (uint32_t i = 0; i <= 1200; i++) {
        struct tensor x, weight, y = {0};
        float value = 0;
        ok(tensor_new(&x, arena, SHAPE2(1 + i % 1200, 1), DTYPE_F32, "x", &net.error));
        ok(tensor_new(&weight, arena, SHAPE2(1, 1), DTYPE_F32, "weight", &net.error));
        ok(backend_fill(net.backend, &x, i, &net.error));
        ok(backend_fill(net.backend, &weight, 2, &net.error));
        struct op_call call = {.op = OP_LINEAR, .arena = arena, .in = {&x, &weight}, .out = {&y}};
        ok(op_forward(net.backend, &call, &net.error));
        memcpy(&value, y.data, sizeof value);
        ck_assert(value == 2 * (float)i);
        arena_reset(arena);
    }
    tape_free(net.tape);
    backend_close(net.backend);
}
END_TEST

START_TEST(wrong_indices_are_named)
{
    static const int32_t bad[] = {0, 4, -1, 7};
    char expected[32];
    backend_on(2);
    for (int op = 0; op < 3; op++) {
        tape_begin(net.tape, TAPE_INFER, NULL);
        const int32_t indices[] = {1, op == 0 ? bad[1] : bad[2 + op % 2]};
        const float zeros[8] = {0};
        struct variable *x = tape_input(net.tape, SHAPE2(2, 4), DTYPE_F32, "x", zeros);
        struct variable *index = tape_input(net.tape, SHAPE1(2), DTYPE_I32, "chosen", indices);
        if (op == 0)
            tape_embedding(net.tape, index, tape_input(net.tape, SHAPE2(4, 2), DTYPE_F32, "w", zeros));
        else if (op == 1)
            tape_cross_entropy(net.tape, x, index);
        else
            tape_log_probability(net.tape, x, index);
        ck_assert_int_eq(tape_finish(net.tape, &net.error), STATUS_INVALID);
        snprintf(expected, sizeof expected, "is %d, expected 0..3", (int)indices[1]);
        ck_assert_msg(strstr(net.error.text, expected) != NULL, "%s", net.error.text);
        ck_assert_ptr_nonnull(strstr(net.error.text, "element 1 of "));
        ck_assert_ptr_nonnull(strstr(net.error.text, "\"chosen\""));
    }
    tape_free(net.tape);
    backend_close(net.backend);
}
END_TEST

START_TEST(the_text_tells_library_instructions_and_threads)
{
    backend_on(1);
    ck_assert_ptr_nonnull(strstr(net.backend->text, "oneDNN 2."));
    ck_assert_ptr_nonnull(strstr(net.backend->text, ", 1 thread"));
    tape_free(net.tape);
    backend_close(net.backend);
    backend_on(2);
    ck_assert_ptr_nonnull(strstr(net.backend->text, ", 2 threads"));
    tape_free(net.tape);
    backend_close(net.backend);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backend_onednn");
    TCase *tests = tcase_create("onednn");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, layouts_pass_and_plans_are_made_once, 0, 2);
    tcase_add_test(tests, reordered_weights_learn_the_same);
    tcase_add_loop_test(tests, the_same_bits_twice, 0, 2);
    tcase_add_test(tests, widths_do_not_mix);
    tcase_add_test(tests, padding_counts_for_nothing);
    tcase_add_test(tests, every_thread_flushes_denormals);
    tcase_add_test(tests, plans_are_forgotten_before_they_fill_the_memory);
    tcase_add_test(tests, wrong_indices_are_named);
    tcase_add_test(tests, the_text_tells_library_instructions_and_threads);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}

/* The stand-in for cuDNN: each check refuses with its status, the arithmetic is right, and every part can be
 * switched off. test_cudnn_lstm.c has the LSTM. */
#include "test/gpu/cudnn_fixture.h"
#include "test/oracle/ref_internal.h"
#include "test/workplace.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- handle, descriptors, errors ---- */

START_TEST(errors_have_names_and_sentences)
{
    char text[200];
    ck_assert_str_eq(cudnnGetErrorString(CUDNN_STATUS_SUCCESS), "CUDNN_STATUS_SUCCESS");
    ck_assert_str_eq(cudnnGetErrorString(CUDNN_STATUS_BAD_PARAM), "CUDNN_STATUS_BAD_PARAM");
    ck_assert_uint_eq(cudnnGetVersion() / 10000, 9);
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetTensor4dDescriptor(images(1, 1, 1, 1), CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 0, 1, 1));
    cudnnGetLastErrorString(text, sizeof text);
    ck_assert_str_eq(text, "cudnnSetTensor4dDescriptor: size 1 is 0, expected at least 1");
    cudnnGetLastErrorString(text, sizeof text);
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(handle_is_checked)
{
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnCreate(NULL));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnDestroy(NULL));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnSetStream(NULL, stream));
    cudaStream_t of_handle = NULL;
    OK(cudnnGetStream(cudnn, &of_handle));
    ck_assert_ptr_eq(of_handle, stream);
    gpu_arm("cudnnCreate", 1, CUDNN_STATUS_NOT_INITIALIZED);
    cudnnHandle_t other;
    REFUSED(CUDNN_STATUS_NOT_INITIALIZED, cudnnCreate(&other));
    /* a call that frees does so before it fails */
    OK(cudnnCreate(&other));
    const uint64_t alive = gpu_alive_count();
    gpu_arm("cudnnDestroy", 1, CUDNN_STATUS_INTERNAL_ERROR);
    REFUSED(CUDNN_STATUS_INTERNAL_ERROR, cudnnDestroy(other));
    ck_assert_uint_eq(gpu_alive_count(), alive - 1);
    gpu_disarm();
}
END_TEST

START_TEST(tensors_are_checked)
{
    cudnnTensorDescriptor_t x = images(1, 1, 1, 1);
    const int size[3] = {1, 2, 3}, stride[3] = {6, 3, 1}, bad[3] = {6, 0, 1};
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnCreateTensorDescriptor(NULL));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            cudnnSetTensor4dDescriptor(NULL, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1, 1));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, -1, 1));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, (cudnnDataType_t)99, 1, 1, 1, 1));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetTensor4dDescriptor(x, (cudnnTensorFormat_t)7, CUDNN_DATA_FLOAT, 1, 1, 1, 1));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED,
            cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1 << 16, 1 << 15, 1, 1));
    OK(cudnnSetTensorNdDescriptor(x, CUDNN_DATA_FLOAT, 3, size, stride));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, cudnnSetTensorNdDescriptor(x, CUDNN_DATA_FLOAT, 2, size, stride));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, cudnnSetTensorNdDescriptor(x, CUDNN_DATA_FLOAT, 9, size, stride));
    REFUSED(CUDNN_STATUS_BAD_PARAM, cudnnSetTensorNdDescriptor(x, CUDNN_DATA_FLOAT, 3, size, bad));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            cudnnSetTensorNdDescriptor(x, CUDNN_DATA_FLOAT, 3, NULL, stride));
}
END_TEST

START_TEST(other_descriptors_are_checked)
{
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t convolution;
    cudnnPoolingDescriptor_t pooling;
    cudnnActivationDescriptor_t activation;
    cudnnDropoutDescriptor_t dropout;
    OK(cudnnCreateFilterDescriptor(&filter));
    OK(cudnnCreateConvolutionDescriptor(&convolution));
    OK(cudnnCreatePoolingDescriptor(&pooling));
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnCreateDropoutDescriptor(&dropout));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 0, 1, 1, 1));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetConvolution2dDescriptor(convolution, -1, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 0, 1, 1, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 0, 1, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 0, 2, 0, 0, 2, 2));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 2, 0, 2, 2));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 0));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSetActivationDescriptor(activation, (cudnnActivationMode_t)9, CUDNN_PROPAGATE_NAN, 0));
    REFUSED(CUDNN_STATUS_BAD_PARAM, cudnnSetDropoutDescriptor(dropout, cudnn, 1.5f, NULL, 0, 0));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnSetDropoutDescriptor(dropout, NULL, 0, NULL, 0, 0));
    OK(cudnnDestroyDropoutDescriptor(dropout));
    OK(cudnnDestroyActivationDescriptor(activation));
    OK(cudnnDestroyPoolingDescriptor(pooling));
    OK(cudnnDestroyConvolutionDescriptor(convolution));
    OK(cudnnDestroyFilterDescriptor(filter));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, cudnnDestroyFilterDescriptor(NULL));
}
END_TEST

START_TEST(misuse_descriptor_of_another_type)
{
    cudnnFilterDescriptor_t filter;
    OK(cudnnCreateFilterDescriptor(&filter));
    cudnnSetTensor4dDescriptor((cudnnTensorDescriptor_t)filter, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 1,
                               1);
}
END_TEST

START_TEST(misuse_of_a_strict_caller)
{
    gpu_cudnn_strict(true);
    cudnnSetTensor4dDescriptor(images(1, 1, 1, 1), CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 0, 1, 1, 1);
}
END_TEST

/* ---- convolutions ---- */

struct convolution {
    int n, c, h, w, k, kh, kw, padding, stride, oh, ow;
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t descriptor;
    size_t x_count, w_count, y_count;
    float *host_x, *host_w, *host_y; /* x, weight and a gradient of y */
    float *dev_x, *dev_w, *dev_dy, *dev_y;
};

/* Images, kernels, padding and stride of the tests. */
static const int shapes[][9] = {{2, 3, 7, 6, 4, 3, 3, 1, 1},
                                {3, 5, 1, 1, 2, 1, 1, 0, 1},
                                {1, 2, 9, 8, 3, 5, 3, 2, 2},
                                {2, 1, 4, 4, 2, 2, 2, 0, 2}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static size_t elements(int a, int b, int c, int d)
{
    return (size_t)a * (size_t)b * (size_t)c * (size_t)d;
}

static float *drawn(size_t count, uint32_t seed)
{
    float *values = malloc(count * sizeof *values);
    ck_assert_ptr_nonnull(values);
    draw(values, count, seed);
    return values;
}

static struct convolution convolution_open(const int *s)
{
    struct convolution c = {.n = s[0],
                            .c = s[1],
                            .h = s[2],
                            .w = s[3],
                            .k = s[4],
                            .kh = s[5],
                            .kw = s[6],
                            .padding = s[7],
                            .stride = s[8]};
    c.oh = (c.h + 2 * c.padding - c.kh) / c.stride + 1;
    c.ow = (c.w + 2 * c.padding - c.kw) / c.stride + 1;
    c.x = images(c.n, c.c, c.h, c.w);
    c.y = images(c.n, c.k, c.oh, c.ow);
    c.bias = images(1, c.k, 1, 1);
    OK(cudnnCreateFilterDescriptor(&c.weight));
    OK(cudnnSetFilter4dDescriptor(c.weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, c.k, c.c, c.kh, c.kw));
    OK(cudnnCreateConvolutionDescriptor(&c.descriptor));
    OK(cudnnSetConvolution2dDescriptor(c.descriptor, c.padding, c.padding, c.stride, c.stride, 1, 1,
                                       CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    OK(cudnnSetConvolutionMathType(c.descriptor, CUDNN_FMA_MATH));
    c.x_count = elements(c.n, c.c, c.h, c.w);
    c.w_count = elements(c.k, c.c, c.kh, c.kw);
    c.y_count = elements(c.n, c.k, c.oh, c.ow);
    c.host_x = drawn(c.x_count, 1);
    c.host_w = drawn(c.w_count, 2);
    c.host_y = drawn(c.y_count, 3);
    c.dev_x = device_of(c.host_x, c.x_count);
    c.dev_w = device_of(c.host_w, c.w_count);
    c.dev_dy = device_of(c.host_y, c.y_count);
    c.dev_y = device_new(c.y_count);
    return c;
}

static void convolution_close(struct convolution *c)
{
    OK(cudnnDestroyConvolutionDescriptor(c->descriptor));
    OK(cudnnDestroyFilterDescriptor(c->weight));
    free(c->host_x);
    free(c->host_w);
    free(c->host_y);
}

static const cudnnConvolutionFwdAlgo_t PRECOMP = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;

static size_t forward_bytes(const struct convolution *c)
{
    size_t bytes = 0;
    OK(cudnnGetConvolutionForwardWorkspaceSize(cudnn, c->x, c->weight, c->descriptor, c->y, PRECOMP, &bytes));
    ck_assert_uint_gt(bytes, 0);
    return bytes;
}

/* One output by its formula. */
static double convolved(const struct convolution *c, size_t output)
{
    const int ow = (int)output % c->ow, oh = (int)output / c->ow % c->oh;
    const int k = (int)output / c->ow / c->oh % c->k, n = (int)output / c->ow / c->oh / c->k;
    double sum = 0;
    for (int i = 0; i < c->c; i++)
        for (int a = 0; a < c->kh; a++)
            for (int b = 0; b < c->kw; b++) {
                const int row = oh * c->stride + a - c->padding, column = ow * c->stride + b - c->padding;
                if (row >= 0 && row < c->h && column >= 0 && column < c->w)
                    sum += (double)c->host_x[((n * c->c + i) * c->h + row) * c->w + column] *
                           (double)c->host_w[((k * c->c + i) * c->kh + a) * c->kw + b];
            }
    return sum;
}

START_TEST(convolution_forward_is_its_formula)
{
    struct convolution c = convolution_open(shapes[_i]);
    const size_t bytes = forward_bytes(&c);
    float *workspace = device_new(bytes / sizeof(float)), *y = calloc(c.y_count, sizeof *y);
    float *left = malloc(bytes);
    const float two = 2;
    OK(cudnnConvolutionForward(cudnn, &ONE, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor, PRECOMP, workspace,
                               bytes, &ZERO, c.y, c.dev_y));
    OK(cudnnConvolutionForward(cudnn, &two, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor, PRECOMP, workspace,
                               bytes, &ONE, c.y, c.dev_y));
    device_read(y, c.dev_y, c.y_count);
    for (size_t i = 0; i < c.y_count; i++)
        assert_near((double)y[i], 3 * convolved(&c, i), 1e-5);
    device_read(left, workspace, bytes / sizeof(float));
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ck_assert(isnan(left[i]));
    free(left);
    free(y);
    convolution_close(&c);
}
END_TEST

/* Both gradients are adjoint to the forward: <conv(x, w), dy> = <x, dx> = <w, dw>. */
START_TEST(convolution_backward_is_adjoint)
{
    struct convolution c = convolution_open(shapes[_i]);
    size_t data_bytes, filter_bytes;
    double expected = 0, bias_expected = 0;
    OK(cudnnGetConvolutionBackwardDataWorkspaceSize(cudnn, c.weight, c.y, c.descriptor, c.x,
                                                    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, &data_bytes));
    OK(cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnn, c.x, c.y, c.descriptor, c.weight,
                                                      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &filter_bytes));
    float *workspace = device_new((data_bytes + filter_bytes) / sizeof(float));
    float *dev_dx = device_new(c.x_count), *dev_dw = device_new(c.w_count), *dev_db = device_new((size_t)c.k);
    float *dx = calloc(c.x_count, sizeof *dx), *dw = calloc(c.w_count, sizeof *dw);
    float *db = calloc((size_t)c.k, sizeof *db);
    OK(cudnnConvolutionBackwardData(cudnn, &ONE, c.weight, c.dev_w, c.y, c.dev_dy, c.descriptor,
                                    CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace, data_bytes, &ZERO, c.x,
                                    dev_dx));
    OK(cudnnConvolutionBackwardFilter(cudnn, &ONE, c.x, c.dev_x, c.y, c.dev_dy, c.descriptor,
                                      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace, filter_bytes, &ZERO,
                                      c.weight, dev_dw));
    OK(cudnnConvolutionBackwardBias(cudnn, &ONE, c.y, c.dev_dy, &ZERO, c.bias, dev_db));
    device_read(dx, dev_dx, c.x_count);
    device_read(dw, dev_dw, c.w_count);
    device_read(db, dev_db, (size_t)c.k);
    for (size_t i = 0; i < c.y_count; i++) {
        expected += convolved(&c, i) * (double)c.host_y[i];
        bias_expected += (double)c.host_y[i];
    }
    assert_near(dot(c.host_x, dx, c.x_count), expected, 1e-4);
    assert_near(dot(c.host_w, dw, c.w_count), expected, 1e-4);
    for (int i = 0; i < c.k; i++)
        bias_expected -= (double)db[i];
    assert_near(bias_expected, 0, 1e-5);
    free(db);
    free(dw);
    free(dx);
    convolution_close(&c);
}
END_TEST

START_TEST(convolution_without_fma_math_is_rounded)
{
    struct convolution c = convolution_open(shapes[0]);
    float *y = calloc(c.y_count, sizeof *y);
    double worst = 0;
    OK(cudnnSetConvolutionMathType(c.descriptor, CUDNN_DEFAULT_MATH));
    OK(cudnnConvolutionForward(cudnn, &ONE, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor,
                               CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, NULL, 0, &ZERO, c.y, c.dev_y));
    device_read(y, c.dev_y, c.y_count);
    for (size_t i = 0; i < c.y_count; i++)
        worst = fmax(worst, fabs((double)y[i] - convolved(&c, i)));
    ck_assert(worst > 1e-5 && worst < 1e-2);
    free(y);
    convolution_close(&c);
}
END_TEST

START_TEST(convolutions_are_checked)
{
    struct convolution c = convolution_open(shapes[0]);
    const size_t bytes = forward_bytes(&c);
    float *workspace = device_new(bytes / sizeof(float));
    cudnnTensorDescriptor_t unset;
    OK(cudnnCreateTensorDescriptor(&unset));
#define FORWARD(x, weight_at, algorithm, work_bytes, y)                                                      \
    cudnnConvolutionForward(cudnn, &ONE, x, c.dev_x, c.weight, weight_at, c.descriptor, algorithm,           \
                            workspace, work_bytes, &ZERO, y, c.dev_y)
    REFUSED(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, FORWARD(unset, c.dev_w, PRECOMP, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, FORWARD(NULL, c.dev_w, PRECOMP, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, FORWARD(c.x, NULL, PRECOMP, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, FORWARD(c.x, c.dev_w, PRECOMP, bytes, c.x));
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, FORWARD(c.y, c.dev_w, PRECOMP, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, FORWARD(c.x, c.dev_w, PRECOMP, bytes - 4, c.y));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, FORWARD(c.x, c.dev_w, CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM, FORWARD(c.x, c.dev_w, CUDNN_CONVOLUTION_FWD_ALGO_COUNT, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
            FORWARD(c.x, (const char *)c.dev_w + 2, PRECOMP, bytes, c.y));
    REFUSED(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            cudnnConvolutionForward(NULL, &ONE, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor, PRECOMP,
                                    workspace, bytes, &ZERO, c.y, c.dev_y));
    OK(cudnnSetTensor4dDescriptor(unset, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, c.n, c.c, c.h, c.w));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, FORWARD(unset, c.dev_w, PRECOMP, bytes, c.y));
    OK(cudnnSetTensor4dDescriptor(unset, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, c.n, c.c, c.h, c.w));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, FORWARD(unset, c.dev_w, PRECOMP, bytes, c.y));
#undef FORWARD
    OK(cudnnDestroyTensorDescriptor(unset));
    convolution_close(&c);
}
END_TEST

/* What a GPU would leave unnoticed: host memory, a region too small, an overlap, a factor on the device, a
 * convolution's memory that is freed before it runs. */
START_TEST(misuse_of_memory)
{
    struct convolution c = convolution_open(shapes[0]);
    const cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    const void *x[5] = {c.host_x, c.dev_x + 1, c.dev_y, c.dev_x, c.dev_x};
    const void *alpha = _i == 3 ? c.dev_x : &ONE;
    if (_i == 4) {
        float *short_lived;
        OK(cudaMalloc((void **)&short_lived, c.x_count * sizeof(float)));
        x[4] = short_lived;
    }
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    if (_i == 4)
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    cudnnConvolutionForward(cudnn, alpha, c.x, x[_i], c.weight, c.dev_w, c.descriptor, algorithm, NULL, 0,
                            &ZERO, c.y, c.dev_y);
    ck_assert_int_eq(_i, 4);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaFree((void *)(uintptr_t)x[4]));
    cudaGraphLaunch(executable, stream);
    cudaStreamSynchronize(stream);
}
END_TEST

START_TEST(proposals_have_all_kinds)
{
    struct convolution c = convolution_open(shapes[0]);
    cudnnConvolutionBwdDataAlgoPerf_t proposals[32];
    int count, kinds[4] = {0};
    OK(cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn, c.weight, c.y, c.descriptor, c.x, 32, &count,
                                                   proposals));
    for (int i = 0; i < count; i++) {
        kinds[0] += proposals[i].status == CUDNN_STATUS_NOT_SUPPORTED;
        kinds[1] += proposals[i].determinism == CUDNN_NON_DETERMINISTIC;
        kinds[2] += proposals[i].mathType == CUDNN_TENSOR_OP_MATH;
        kinds[3] += proposals[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
    }
    ck_assert_int_eq(kinds[0], 0);
    ck_assert(kinds[1] > 0 && kinds[2] > 0 && kinds[3] == 2);
    gpu_cudnn_refuse("BWD_DATA_ALGO_1,BWD_DATA_ALGO_FFT:run");
    OK(cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn, c.weight, c.y, c.descriptor, c.x, 32, &count,
                                                   proposals));
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(proposals[i].status == CUDNN_STATUS_NOT_SUPPORTED,
                         proposals[i].algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1);
    OK(cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnn, c.weight, c.y, c.descriptor, c.x, 1, &count,
                                                   proposals));
    ck_assert_int_eq(count, 1);
    REFUSED(CUDNN_STATUS_BAD_PARAM, cudnnGetConvolutionBackwardDataAlgorithm_v7(
                                        cudnn, c.weight, c.y, c.descriptor, c.x, 0, &count, proposals));
    convolution_close(&c);
}
END_TEST

START_TEST(every_pass_has_proposals)
{
    struct convolution c = convolution_open(shapes[2]); /* a stride of 2, so some algorithms do not fit */
    cudnnConvolutionFwdAlgoPerf_t forward[32];
    cudnnConvolutionBwdFilterAlgoPerf_t filter[32];
    int count, supported = 0;
    OK(cudnnGetConvolutionForwardAlgorithm_v7(cudnn, c.x, c.weight, c.descriptor, c.y, 32, &count, forward));
    ck_assert_int_eq(count, 10);
    for (int i = 0; i < count; i++)
        if (forward[i].status == CUDNN_STATUS_SUCCESS) {
            size_t bytes;
            OK(cudnnGetConvolutionForwardWorkspaceSize(cudnn, c.x, c.weight, c.descriptor, c.y,
                                                       forward[i].algo, &bytes));
            ck_assert_uint_eq(bytes, forward[i].memory);
            ck_assert_int_eq(i, supported++); /* those that fit stand first */
        }
    ck_assert_int_eq(supported, 4);
    OK(cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnn, c.x, c.y, c.descriptor, c.weight, 32, &count,
                                                     filter));
    ck_assert(count == 9 && filter[0].determinism == CUDNN_NON_DETERMINISTIC);
    REFUSED(
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        cudnnGetConvolutionForwardAlgorithm_v7(cudnn, c.x, c.weight, c.descriptor, c.y, 32, &count, NULL));
    convolution_close(&c);
}
END_TEST

/* What the stand-in does not compute, and what no convolution is. */
START_TEST(convolutions_that_are_not_supported)
{
    struct convolution c = convolution_open(shapes[0]);
    const cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    const int size[3] = {1, 2, 3}, stride[3] = {6, 3, 1};
    cudnnTensorDescriptor_t three = images(1, 1, 1, 1);
    size_t bytes;
#define SIZE_OF(x)                                                                                           \
    cudnnGetConvolutionForwardWorkspaceSize(cudnn, x, c.weight, c.descriptor, c.y, algorithm, &bytes)
    OK(SIZE_OF(c.x));
    ck_assert_uint_eq(bytes, 0);
    REFUSED(
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        cudnnGetConvolutionForwardWorkspaceSize(cudnn, c.x, c.weight, c.descriptor, c.y, algorithm, NULL));
    OK(cudnnSetTensorNdDescriptor(three, CUDNN_DATA_FLOAT, 3, size, stride));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, SIZE_OF(three));
    OK(cudnnSetConvolution2dDescriptor(c.descriptor, 1, 1, 1, 1, 2, 2, CUDNN_CROSS_CORRELATION,
                                       CUDNN_DATA_FLOAT));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, SIZE_OF(c.x));
    OK(cudnnSetConvolution2dDescriptor(c.descriptor, 1, 1, 1, 1, 1, 1, CUDNN_CONVOLUTION, CUDNN_DATA_FLOAT));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, SIZE_OF(c.x));
    OK(cudnnSetConvolution2dDescriptor(c.descriptor, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                       CUDNN_DATA_HALF));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, SIZE_OF(c.x));
    OK(cudnnSetConvolution2dDescriptor(c.descriptor, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                       CUDNN_DATA_FLOAT));
    OK(cudnnSetFilter4dDescriptor(c.weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, c.k, c.c, c.h + 1, 1));
    REFUSED(CUDNN_STATUS_BAD_PARAM, SIZE_OF(c.x));
    OK(cudnnSetFilter4dDescriptor(c.weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, c.k, c.c, 3, 3));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, SIZE_OF(c.x));
#undef SIZE_OF
    convolution_close(&c);
}
END_TEST

START_TEST(a_stream_that_fails_is_reported)
{
    cudnnTensorDescriptor_t x = images(2, 5, 1, 1);
    float *at = device_new(10);
    void *forbidden;
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ck_assert_int_ne((int)cudaMalloc(&forbidden, 4), 0); /* invalidates the capture */
    REFUSED(
        CUDNN_STATUS_EXECUTION_FAILED_CUDART,
        cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, x, at, &ZERO, x, at));
    REFUSED(
        CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
        cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, NULL, x, at, &ZERO, x, at));
    ck_assert_int_ne((int)cudaStreamEndCapture(stream, &graph), 0);
}
END_TEST

START_TEST(algorithms_can_be_refused)
{
    struct convolution c = convolution_open(shapes[0]);
    size_t bytes = forward_bytes(&c);
    float *workspace = device_new(bytes / sizeof(float));
    gpu_cudnn_refuse("FWD_ALGO_IMPLICIT_PRECOMP_GEMM:run");
    bytes = forward_bytes(&c);
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED,
            cudnnConvolutionForward(cudnn, &ONE, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor, PRECOMP,
                                    workspace, bytes, &ZERO, c.y, c.dev_y));
    gpu_cudnn_refuse("FWD_ALGO_IMPLICIT_PRECOMP_GEMM");
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, cudnnGetConvolutionForwardWorkspaceSize(
                                            cudnn, c.x, c.weight, c.descriptor, c.y, PRECOMP, &bytes));
    gpu_cudnn_refuse(NULL);
    OK(cudnnConvolutionForward(cudnn, &ONE, c.x, c.dev_x, c.weight, c.dev_w, c.descriptor, PRECOMP, workspace,
                               bytes, &ZERO, c.y, c.dev_y));
    convolution_close(&c);
}
END_TEST

START_TEST(misuse_refusing_an_unknown_part)
{
    gpu_cudnn_refuse("FWD_ALGO_MAGIC");
}
END_TEST

/* ---- the fused forward ---- */

struct fused {
    struct convolution c;
    size_t bytes;
    float *workspace, *bias, *host_bias;
};

static struct fused fused_open(void)
{
    struct fused f = {.c = convolution_open(shapes[0])};
    f.bytes = forward_bytes(&f.c);
    f.workspace = device_new(f.bytes / sizeof(float));
    f.host_bias = drawn((size_t)f.c.k, 9);
    f.bias = device_of(f.host_bias, (size_t)f.c.k);
    return f;
}

static cudnnStatus_t fused_run(const struct fused *f, cudnnActivationMode_t mode, cudnnNanPropagation_t nan,
                               cudnnConvolutionFwdAlgo_t algorithm, const float *alpha2)
{
    const struct convolution *c = &f->c;
    cudnnActivationDescriptor_t activation;
    OK(cudnnCreateActivationDescriptor(&activation));
    OK(cudnnSetActivationDescriptor(activation, mode, nan, 0));
    const cudnnStatus_t status = cudnnConvolutionBiasActivationForward(
        cudnn, &ONE, c->x, c->dev_x, c->weight, c->dev_w, c->descriptor, algorithm, f->workspace, f->bytes,
        alpha2, c->y, c->dev_y, c->bias, f->bias, activation, c->y, c->dev_y);
    OK(cudnnDestroyActivationDescriptor(activation));
    return status;
}

static void fused_close(struct fused *f)
{
    free(f->host_bias);
    convolution_close(&f->c);
}

START_TEST(fused_forward_is_its_formula)
{
    struct fused f = fused_open();
    float *y = calloc(f.c.y_count, sizeof *y);
    const size_t plane = elements(1, 1, f.c.oh, f.c.ow);
    OK(fused_run(&f, CUDNN_ACTIVATION_IDENTITY, CUDNN_NOT_PROPAGATE_NAN, PRECOMP, &ZERO));
    OK(fused_run(&f, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, PRECOMP, &ONE)); /* z is y */
    device_read(y, f.c.dev_y, f.c.y_count);
    for (size_t i = 0; i < f.c.y_count; i++) {
        const double z = convolved(&f.c, i) + (double)f.host_bias[i / plane % (size_t)f.c.k];
        assert_near((double)y[i], fmax(2 * z, 0), 1e-5);
    }
    free(y);
    fused_close(&f);
}
END_TEST

START_TEST(fused_relu_treats_a_nan_as_it_is_told)
{
    struct fused f = fused_open();
    const float nan = NAN;
    float y;
    device_write(f.c.dev_x, &nan, 1);
    OK(fused_run(&f, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, PRECOMP, &ZERO));
    device_read(&y, f.c.dev_y, 1);
    ck_assert(isnan(y));
    OK(fused_run(&f, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, PRECOMP, &ZERO));
    device_read(&y, f.c.dev_y, 1);
    ck_assert(y == 0);
    fused_close(&f);
}
END_TEST

START_TEST(fusions_can_be_refused)
{
    struct fused f = fused_open();
    const cudnnActivationMode_t relu = CUDNN_ACTIVATION_RELU, identity = CUDNN_ACTIVATION_IDENTITY;
    const cudnnNanPropagation_t keep = CUDNN_PROPAGATE_NAN, lose = CUDNN_NOT_PROPAGATE_NAN;
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, fused_run(&f, CUDNN_ACTIVATION_TANH, lose, PRECOMP, &ZERO));
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED,
            fused_run(&f, identity, lose, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, &ZERO));
    gpu_cudnn_refuse("FUSED_PROPAGATE_NAN");
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, fused_run(&f, relu, keep, PRECOMP, &ZERO));
    OK(fused_run(&f, relu, lose, PRECOMP, &ZERO));
    gpu_cudnn_refuse("FUSED_RELU");
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, fused_run(&f, relu, lose, PRECOMP, &ZERO));
    OK(fused_run(&f, identity, lose, PRECOMP, &ZERO));
    gpu_cudnn_refuse("FUSED_IDENTITY");
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, fused_run(&f, identity, lose, PRECOMP, &ZERO));
    gpu_cudnn_refuse(NULL);
    gpu_cudnn_refuse("FUSED");
    REFUSED(CUDNN_STATUS_NOT_SUPPORTED, fused_run(&f, relu, lose, PRECOMP, &ZERO));
    gpu_cudnn_refuse(NULL);
    f.c.bias = f.c.y;
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, fused_run(&f, relu, lose, PRECOMP, &ZERO));
    fused_close(&f);
}
END_TEST

/* ---- gradients by differences ---- */

/* Queues a forward from `x` into `y`, on the device. */
typedef void forward_function(const float *x, float *y, void *context);

/* Checks dx against the central differences of <y(x), dy>. */
static void assert_gradient(forward_function *forward, void *context, const float *x, size_t x_count,
                            const float *dy, size_t y_count, const float *dx)
{
    const float step = 1.0f / 128;
    float *moved = malloc(x_count * sizeof *moved), *y = malloc(y_count * sizeof *y);
    float *dev_x = device_new(x_count), *dev_y = device_new(y_count);
    for (size_t i = 0; i < x_count; i++) {
        double loss[2];
        for (int side = 0; side < 2; side++) {
            memcpy(moved, x, x_count * sizeof *moved);
            moved[i] += side == 0 ? -step : step;
            device_write(dev_x, moved, x_count);
            forward(dev_x, dev_y, context);
            device_read(y, dev_y, y_count);
            loss[side] = dot(y, dy, y_count);
        }
        assert_near((double)dx[i], (loss[1] - loss[0]) / (2 * (double)step), 2e-3);
    }
    free(y);
    free(moved);
}

/* ---- softmax ---- */

struct softmax {
    cudnnTensorDescriptor_t x;
    cudnnSoftmaxAlgorithm_t algorithm;
    cudnnSoftmaxMode_t mode;
};

static void softmax_forward(const float *x, float *y, void *context)
{
    const struct softmax *softmax = context;
    OK(cudnnSoftmaxForward(cudnn, softmax->algorithm, softmax->mode, &ONE, softmax->x, x, &ZERO, softmax->x,
                           y));
}

START_TEST(softmax_and_its_gradient)
{
    enum { COUNT = 2 * 5 * 3 };
    struct softmax softmax = {images(2, 5, 3, 1), _i / 2 == 0 ? CUDNN_SOFTMAX_LOG : CUDNN_SOFTMAX_ACCURATE,
                              _i % 2 == 0 ? CUDNN_SOFTMAX_MODE_CHANNEL : CUDNN_SOFTMAX_MODE_INSTANCE};
    float x[COUNT], y[COUNT], dy[COUNT], dx[COUNT];
    draw(x, COUNT, 6);
    draw(dy, COUNT, 7);
    float *dev_x = device_of(x, COUNT), *dev_dy = device_of(dy, COUNT), *dev_y = device_new(COUNT);
    softmax_forward(dev_x, dev_y, &softmax);
    device_read(y, dev_y, COUNT);
    double sum = 0; /* of all probabilities: 1 for each softmax */
    for (int i = 0; i < COUNT; i++)
        sum += _i / 2 == 0 ? exp((double)y[i]) : (double)y[i];
    assert_near(sum, _i % 2 == 0 ? 6 : 2, 1e-5);
    OK(cudnnSoftmaxBackward(cudnn, softmax.algorithm, softmax.mode, &ONE, softmax.x, dev_y, softmax.x, dev_dy,
                            &ZERO, softmax.x, dev_dy)); /* in place */
    device_read(dx, dev_dy, COUNT);
    assert_gradient(softmax_forward, &softmax, x, COUNT, dy, COUNT, dx);
}
END_TEST

START_TEST(softmax_is_checked)
{
    cudnnTensorDescriptor_t x = images(2, 5, 1, 1), other = images(5, 2, 1, 1);
    float *at = device_new(10);
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSoftmaxForward(cudnn, (cudnnSoftmaxAlgorithm_t)3, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, x, at,
                                &ZERO, x, at));
    REFUSED(CUDNN_STATUS_BAD_PARAM,
            cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, (cudnnSoftmaxMode_t)2, &ONE, x, at, &ZERO, x, at));
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, x, at, &ZERO,
                                other, at));
    OK(cudnnSoftmaxForward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, x, at, &ZERO, x, at));
}
END_TEST

/* y of a softmax's backward is only read, so dx must not be its memory. */
START_TEST(misuse_of_softmax_in_place)
{
    cudnnTensorDescriptor_t x = images(2, 5, 1, 1);
    float *y = device_new(10), *dy = device_new(10);
    cudnnSoftmaxBackward(cudnn, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &ONE, x, y, x, dy, &ZERO, x,
                         y);
}
END_TEST

/* ---- pools ---- */

enum { POOL_X = 2 * 2 * 5 * 5, POOL_Y = 2 * 2 * 3 * 3 };

struct pool {
    cudnnPoolingDescriptor_t descriptor;
    cudnnTensorDescriptor_t x, y;
};

static struct pool pool_open(cudnnPoolingMode_t mode, cudnnNanPropagation_t nan)
{
    struct pool pool = {.x = images(2, 2, 5, 5), .y = images(2, 2, 3, 3)};
    OK(cudnnCreatePoolingDescriptor(&pool.descriptor));
    OK(cudnnSetPooling2dDescriptor(pool.descriptor, mode, nan, 3, 3, 1, 1, 2, 2));
    return pool;
}

static void pool_forward(const float *x, float *y, void *context)
{
    const struct pool *pool = context;
    OK(cudnnPoolingForward(cudnn, pool->descriptor, &ONE, pool->x, x, &ZERO, pool->y, y));
}

/* The oracle's pool of the same shape. */
static void oracle_pool(enum op op, const float *x, double *y)
{
    double wide[POOL_X];
    struct error error;
    struct tensor in = {.shape = SHAPE4(2, 2, 5, 5), .dtype = DTYPE_F64, .data = wide};
    struct tensor out = {.shape = SHAPE4(2, 2, 3, 3), .dtype = DTYPE_F64, .data = y};
    struct op_call call = {.op = op,
                           .attributes = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                           .in = {&in},
                           .out = {&out}};
    for (int i = 0; i < POOL_X; i++)
        wide[i] = (double)x[i];
    OK((op == OP_MAX_POOL ? ref_max_pool_forward : ref_avg_pool_forward)(NULL, &call, &error));
}

START_TEST(pools_are_the_oracles)
{
    const cudnnPoolingMode_t mode = (cudnnPoolingMode_t)_i;
    const bool average = mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING ||
                         mode == CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING;
    struct pool pool = pool_open(mode, CUDNN_PROPAGATE_NAN);
    float x[POOL_X], y[POOL_Y];
    double expected[POOL_Y];
    draw(x, POOL_X, 8);
    float *dev_x = device_of(x, POOL_X), *dev_y = device_new(POOL_Y);
    pool_forward(dev_x, dev_y, &pool);
    device_read(y, dev_y, POOL_Y);
    oracle_pool(average ? OP_AVG_POOL : OP_MAX_POOL, x, expected);
    for (int i = 0; i < POOL_Y; i++) {
        const bool edge = i % 3 != 1 || i / 3 % 3 != 1; /* its window has padding */
        if (mode != CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING || !edge)
            assert_near((double)y[i], expected[i], 1e-6);
    }
    OK(cudnnDestroyPoolingDescriptor(pool.descriptor));
}
END_TEST

START_TEST(max_pool_treats_a_nan_as_it_is_told)
{
    struct pool pool = pool_open(CUDNN_POOLING_MAX_DETERMINISTIC, (cudnnNanPropagation_t)_i);
    float x[POOL_X], y;
    draw(x, POOL_X, 8);
    x[0] = NAN;
    float *dev_x = device_of(x, POOL_X), *dev_y = device_new(POOL_Y);
    pool_forward(dev_x, dev_y, &pool);
    device_read(&y, dev_y, 1);
    ck_assert_int_eq(isnan(y) != 0, _i == CUDNN_PROPAGATE_NAN);
    REFUSED(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
            cudnnPoolingForward(cudnn, pool.descriptor, &ONE, pool.x, dev_x, &ZERO, pool.x, dev_y));
    OK(cudnnDestroyPoolingDescriptor(pool.descriptor));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cudnn");
    TCase *checks = tcase_create("checks"), *arithmetic = tcase_create("arithmetic"),
          *misuse = tcase_create("misuse");
    tcase_add_checked_fixture(checks, device_open, device_close);
    tcase_add_test(checks, errors_have_names_and_sentences);
    tcase_add_test(checks, handle_is_checked);
    tcase_add_test(checks, tensors_are_checked);
    tcase_add_test(checks, other_descriptors_are_checked);
    tcase_add_test(checks, convolutions_are_checked);
    tcase_add_test(checks, proposals_have_all_kinds);
    tcase_add_test(checks, every_pass_has_proposals);
    tcase_add_test(checks, convolutions_that_are_not_supported);
    tcase_add_test(checks, a_stream_that_fails_is_reported);
    tcase_add_test(checks, algorithms_can_be_refused);
    tcase_add_test(checks, fusions_can_be_refused);
    tcase_add_test(checks, softmax_is_checked);
    suite_add_tcase(suite, checks);
    tcase_add_checked_fixture(arithmetic, device_open, device_close);
    tcase_add_loop_test(arithmetic, convolution_forward_is_its_formula, 0, SHAPES);
    tcase_add_loop_test(arithmetic, convolution_backward_is_adjoint, 0, SHAPES);
    tcase_add_test(arithmetic, convolution_without_fma_math_is_rounded);
    tcase_add_test(arithmetic, fused_forward_is_its_formula);
    tcase_add_test(arithmetic, fused_relu_treats_a_nan_as_it_is_told);
    tcase_add_loop_test(arithmetic, softmax_and_its_gradient, 0, 4);
    tcase_add_loop_test(arithmetic, pools_are_the_oracles, 0, 4);
    tcase_add_loop_test(arithmetic, max_pool_treats_a_nan_as_it_is_told, 0, 2);
    suite_add_tcase(suite, arithmetic);
    tcase_add_checked_fixture(misuse, device_open, device_close);
    tcase_add_test_raise_signal(misuse, misuse_descriptor_of_another_type, SIGABRT);
    tcase_add_test_raise_signal(misuse, misuse_of_a_strict_caller, SIGABRT);
    tcase_add_loop_test_raise_signal(misuse, misuse_of_memory, SIGABRT, 0, 5);
    tcase_add_test_raise_signal(misuse, misuse_refusing_an_unknown_part, SIGABRT);
    tcase_add_test_raise_signal(misuse, misuse_of_softmax_in_place, SIGABRT);
    suite_add_tcase(suite, misuse);
    return suite_run(suite);
}

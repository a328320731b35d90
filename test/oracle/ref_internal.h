/* What the files of the oracle share. Private to test/oracle. */
#ifndef TEST_ORACLE_REF_INTERNAL_H
#define TEST_ORACLE_REF_INTERNAL_H

#include "test/oracle/ref.h"

/* One operation's forward or backward, as it stands in the table. */
typedef enum status ref_function(struct backend *backend, struct op_call *call, struct error *error);

ref_function ref_linear_forward, ref_linear_backward;
ref_function ref_conv2d_forward, ref_conv2d_backward;
ref_function ref_batch_norm_forward, ref_batch_norm_backward;
ref_function ref_max_pool_forward, ref_max_pool_backward;
ref_function ref_avg_pool_forward, ref_avg_pool_backward;
ref_function ref_relu_forward, ref_relu_backward;
ref_function ref_add_forward, ref_add_backward;
ref_function ref_reshape_forward, ref_reshape_backward;
ref_function ref_dropout_forward, ref_dropout_backward;
ref_function ref_log_softmax_forward, ref_log_softmax_backward;
ref_function ref_embedding_forward, ref_embedding_backward;
ref_function ref_lstm_forward, ref_lstm_backward;
ref_function ref_gru_forward, ref_gru_backward;
ref_function ref_mse_forward, ref_mse_backward;
ref_function ref_cross_entropy_forward, ref_cross_entropy_backward;
ref_function ref_log_probability_forward, ref_log_probability_backward;
ref_function ref_sum_forward, ref_sum_backward;
ref_function ref_tanh_forward, ref_tanh_backward;

/* The table's other slots: backend_upload and so on, in kernels/kernels.h. */
enum status ref_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                       struct error *error);
enum status ref_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                         struct error *error);
enum status ref_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error);
enum status ref_accumulate(struct backend *backend, struct tensor *to, const struct tensor *from,
                           struct error *error);
enum status ref_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error);
enum status ref_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                           struct error *error);
enum status ref_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                 struct error *error);
enum status ref_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                    struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                    struct error *error);
enum status ref_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                     struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                     struct tensor *second, struct error *error);
enum status ref_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error);

/* An output's memory: what is there, else a block of the call's arena. Every output gets it before anything
 * is computed. */
enum status ref_make(const struct op_call *call, struct tensor *tensor, struct error *error);

/* ref_make for those of the inputs' gradients that are wanted. */
enum status ref_make_gradients(const struct op_call *call, struct error *error);

/* How the backward of an operation with a ReLU begins: ref_make_gradients, and *gradient is that of the first
 * output in front of the ReLU: dout[0] where it was open and zero elsewhere; without a ReLU dout[0] itself.
 * Give *scratch (NULL or a block) back when it was read. */
enum status ref_begin_backward(const struct op_call *call, double **gradient, void **scratch,
                               struct error *error);

/* In place: max(0, each), where the operation has a ReLU. NaN stays NaN. */
void ref_apply_relu(const struct op_call *call, struct tensor *y);

/* One block of scratch for `count` doubles; NULL with *error set. */
double *ref_scratch(const struct op_call *call, size_t count, struct error *error);

/* The doubles of a tensor; NULL for none. */
static inline double *ref_doubles(const struct tensor *tensor)
{
    return tensor != NULL ? tensor->data : NULL;
}

static inline size_t ref_count(const struct tensor *tensor)
{
    return shape_elements(&tensor->shape);
}

/* log sum_j exp x_j of `count` elements that lie `stride` apart. */
double ref_log_sum_exp(const double *x, size_t count, size_t stride);

/* to (a, c) += left (a, b) right (b, c); `transposed`: left is (b, a). */
void ref_add_product(double *to, const double *left, bool transposed, const double *right, size_t a, size_t b,
                     size_t c);

/* to (columns) = sum over the rows of from (rows, columns) */
void ref_column_sums(double *to, const double *from, size_t rows, size_t columns);

/* to[i] = 0 */
void ref_zero(double *to, size_t count);

#endif

/* The image classifier: a ResNet with its loss. A step allocates nothing. */
#include "worker/model/classifier.h"

#include "kernels/params/params_file.h"
#include "worker/model/resnet.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

struct classifier {
    const struct job *job;
    struct params *params;
    struct resnet *resnet;
    float *one_hot; // (samples of the largest batch, classes) zero between two calls
    double *logits; // (samples of the largest batch, classes)
    void *room;     // memory that classifier_build mapped; NULL: none
    size_t room_bytes;
};

enum status classifier_new(struct classifier **out, const struct job *job, struct params *params,
                           struct error *error)
{
    const struct resnet_config config = {.depth = job->model.name == JOB_MODEL_RESNET18 ? 18 : 50,
                                         .channels = job->data.channels,
                                         .classes = job->model.classes,
                                         .width = job->model.width};
    const uint32_t rows =
        job->trainers.batch > job->evaluation.batch ? job->trainers.batch : job->evaluation.batch;
    const size_t count = (size_t)rows * config.classes;
    enum status status = STATUS_OK;
    struct classifier *classifier = calloc(1, sizeof *classifier);
    if (classifier == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a classifier");
    classifier->job = job;
    classifier->params = params;
    classifier->one_hot = calloc(count, sizeof *classifier->one_hot);
    classifier->logits = calloc(count, sizeof *classifier->logits);
    if (classifier->one_hot == NULL || classifier->logits == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the targets of %u samples", rows);
    if (status == STATUS_OK)
        status = resnet_new(&classifier->resnet, &config, params, error);
    if (status != STATUS_OK) {
        classifier_free(classifier);
        return status;
    }
    *out = classifier;
    return STATUS_OK;
}

void classifier_free(struct classifier *classifier)
{
    if (classifier == NULL)
        return;
    if (classifier->room != NULL) {
        params_displace(classifier->params);
        munmap(classifier->room, classifier->room_bytes);
    }
    resnet_free(classifier->resnet);
    free(classifier->one_hot);
    free(classifier->logits);
    free(classifier);
}

static struct variable *input_images(const struct classifier *classifier, struct tape *tape, uint32_t samples,
                                     const void *images)
{
    const struct job *job = classifier->job;
    return tape_input(tape, SHAPE4(samples, job->data.channels, job->data.size, job->data.size), DTYPE_F32,
                      "images", images);
}

/* ---- where the params lie ---- */

/* Both slabs, one behind the other. */
static size_t slab_bytes(const struct params *params)
{
    return params_elements(params) * dtype_bytes(params_backend(params)->ops->dtype);
}

static size_t model_bytes(const struct params *params)
{
    return slab_bytes(params) +
           params_buffer_elements(params) * dtype_bytes(params_backend(params)->ops->dtype);
}

static void place_at(struct params *params, const void *memory)
{
    params_place(params, 0, params_count(params), memory);
    params_place_buffers(params, (const char *)memory + slab_bytes(params));
}

/* Maps pages of zeros. Pages that are only read are all one page of the operating system. */
static enum status zeros_map(void **zeros, size_t bytes, int protection, struct error *error)
{
    void *data = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return error_set_errno(error, errno, "cannot map %zu bytes for a model", bytes);
    *zeros = data;
    return STATUS_OK;
}

enum status classifier_reorder(struct classifier *classifier, struct tape *tape, struct error *error)
{
    const struct job *job = classifier->job;
    struct params *params = classifier->params;
    if (params_backend(params)->ops->layout_hash == NULL)
        return STATUS_OK;
    const size_t model = model_bytes(params); // a multiple of 64
    const size_t images =
        (size_t)job->trainers.batch * job->data.channels * job->data.size * job->data.size * sizeof(float);
    void *zeros = NULL;
    enum status status = zeros_map(&zeros, model + images, PROT_READ, error);
    if (status != STATUS_OK)
        return status;
    place_at(params, zeros);
    tape_begin(tape, TAPE_INFER, NULL);
    resnet_forward(classifier->resnet, tape,
                   input_images(classifier, tape, job->trainers.batch, (const char *)zeros + model), true);
    status = tape_finish(tape, error);
    if (status == STATUS_OK)
        params_adopt(params);
    params_displace(params);
    munmap(zeros, model + images);
    return status;
}

enum status classifier_build(struct classifier *classifier, struct tape *tape, struct error *error)
{
    struct params *params = classifier->params;
    if (!params_backend(params)->ops->host)
        return params_build(params, 0, error);
    enum status status = params_lay_out(params, error);
    if (status == STATUS_OK)
        status = classifier_reorder(classifier, tape, error);
    if (status != STATUS_OK)
        return status;
    classifier->room_bytes = model_bytes(params);
    status = zeros_map(&classifier->room, classifier->room_bytes, PROT_READ | PROT_WRITE, error);
    if (status == STATUS_OK)
        place_at(params, classifier->room);
    return status;
}

/* ---- training ---- */

static void one_hot_set(struct classifier *classifier, const struct batch *batch, float value)
{
    for (uint32_t i = 0; i < batch->samples; i++)
        classifier->one_hot[(size_t)i * classifier->job->model.classes + (uint32_t)batch->labels[i]] = value;
}

struct variable *classifier_loss(struct classifier *classifier, struct tape *tape, const struct batch *batch)
{
    struct variable *images = input_images(classifier, tape, batch->samples, batch->images);
    struct variable *logits = resnet_forward(classifier->resnet, tape, images, true);
    if (classifier->job->loss.name == JOB_LOSS_CROSS_ENTROPY)
        return tape_cross_entropy(
            tape, logits, tape_input(tape, SHAPE1(batch->samples), DTYPE_I32, "labels", batch->labels));
    one_hot_set(classifier, batch, 1);
    struct variable *target = tape_input(tape, SHAPE2(batch->samples, classifier->job->model.classes),
                                         DTYPE_F32, "labels", classifier->one_hot);
    one_hot_set(classifier, batch, 0);
    return tape_mse(tape, logits, target);
}

enum status classifier_statistics(struct classifier *classifier, struct tape *tape, float *statistics,
                                  struct error *error)
{
    return resnet_read_statistics(classifier->resnet, tape, statistics, error);
}

/* ---- evaluation ---- */

static double loss_of_row(int loss, const double *logits, uint32_t classes, uint32_t label)
{
    double largest = logits[0], sum = 0;
    if (loss == JOB_LOSS_MSE) {
        for (uint32_t c = 0; c < classes; c++) {
            const double off = logits[c] - (c == label ? 1 : 0);
            sum += off * off;
        }
        return sum / classes;
    }
    for (uint32_t c = 1; c < classes; c++)
        largest = logits[c] > largest ? logits[c] : largest;
    for (uint32_t c = 0; c < classes; c++)
        sum += exp(logits[c] - largest);
    return log(sum) + largest - logits[label];
}

/* With a NaN among the logits, no logit is the largest. */
static bool is_first_largest(const double *logits, uint32_t classes, uint32_t label)
{
    for (uint32_t c = 0; c < classes; c++)
        if (!(c < label ? logits[c] < logits[label] : logits[c] <= logits[label]))
            return false;
    return true;
}

enum status classifier_evaluate(struct classifier *classifier, struct tape *tape, const struct batch *batch,
                                double *loss_sum, uint64_t *correct, struct error *error)
{
    const uint32_t classes = classifier->job->model.classes;
    tape_begin(tape, TAPE_INFER, NULL);
    struct variable *images = input_images(classifier, tape, batch->samples, batch->images);
    struct variable *logits = resnet_forward(classifier->resnet, tape, images, false);
    tape_read(tape, logits, DTYPE_F64, classifier->logits);
    enum status status = tape_finish(tape, error);
    for (uint32_t i = 0; status == STATUS_OK && i < batch->samples; i++) {
        const double *row = classifier->logits + (size_t)i * classes;
        const uint32_t label = (uint32_t)batch->labels[i];
        *loss_sum += loss_of_row(classifier->job->loss.name, row, classes, label);
        *correct += is_first_largest(row, classes, label);
    }
    return status;
}

/* ---- a file ---- */

enum status model_file_check(const char *path, const struct job *job, const struct rnn_config *rnn,
                             struct error *error)
{
    static const struct backend_ops names_only = {.dtype = DTYPE_F32};
    struct backend backend = {.ops = &names_only, .source = arena_host};
    struct params *params = NULL;
    struct classifier *classifier = NULL;
    struct params_file *file = NULL;
    enum status status = params_new(&params, &backend, error);
    if (status == STATUS_OK)
        status =
            rnn != NULL ? rnn_register(rnn, params, error) : classifier_new(&classifier, job, params, error);
    if (status == STATUS_OK)
        status = params_file_open(&file, params, path_of(path), &PARAMS_RANGE_ALL, true, error);
    params_file_close(file);
    classifier_free(classifier);
    params_free(params);
    return status;
}

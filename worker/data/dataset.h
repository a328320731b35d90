/* Datasets: labelled images as their files hold them. Pure readers; no order, no augmentation (loader.h).
 *
 *   synthetic   no files: the tutorial's random data. Images are normal(0, 1) from stream RNG_DATA, keyed by
 *               (seed, element, step, trainer); a trainer's labels are drawn once, uniform in [0, classes).
 *               Nothing of it can be read one by one: the loader makes whole batches (synthetic.h).
 *   idx         the MNIST family: PATH/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-…,
 *               t10k-labels-…, each plain or with .gz behind its name (read through zlib).
 *               Format: yann.lecun.com/exdb/mnist
 *   cifar       CIFAR-10: PATH/data_batch_1.bin … data_batch_5.bin, test_batch.bin; CIFAR-100 (fine labels):
 *               train.bin, test.bin. Format: cs.toronto.edu/~kriz/cifar.html, "binary version"
 *   folder      PATH/train/CLASS/NAME.{jpg,jpeg,png} and PATH/test/CLASS/…; classes in order of their
 *               names' bytes, the same in both; in a class the files in order of theirs. test may be absent
 *               (no evaluation then). Passed over: names that begin with a dot, files beside class folders,
 *               folders in them, and other endings (their case does not matter). Decoded with
 *               libjpeg-turbo and libpng on each read (image.h). A file that cannot be opened or decoded is
 *               skipped, counted, and named once.
 *
 * A file that is missing is STATUS_NOT_FOUND (for Debian's dataset-fashion-mnist the text names the package);
 * truncated, oversized or mislabelled ones are STATUS_CORRUPT and name file and offset (of a packed file, in
 * its inflated contents); a class folder without images, no class folder, other ones in test than in train,
 * or more classes than /model/classes are STATUS_INVALID. */
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

enum dataset_split { DATASET_TRAIN, DATASET_EVALUATION };

/* What a job's data is like, from headers and names alone. */
struct dataset_info {
    uint64_t train, evaluation; /* samples; the former after /data/limit. synthetic: 0 and 0 */
};

/* Finds and opens every file of the job's data and looks at its beginning and size, not at its samples.
 * Blocks on files, little. For `check`, the servers' schedule, and the supervisor before it starts anyone. */
enum status dataset_probe(struct dataset_info *info, const struct job *job, struct error *error);

struct dataset;

/* Opens one split, and reads files of bytes (idx, cifar) into memory, checking every label and that each file
 * ends where it should, the samples beyond /data/limit included. STATUS_INVALID: held-out data of a kind or
 * folder that has none. */
enum status dataset_open(struct dataset **out, const struct job *job, enum dataset_split split,
                         struct error *error);
void dataset_free(struct dataset *dataset);

/* Samples, after /data/limit (training only: the first ones). synthetic: 0. */
uint64_t dataset_count(const struct dataset *dataset);

/* One decoded image: 8-bit, interleaved (height, width, channels). `pixels` grows as needed and is reused. */
struct image {
    uint32_t width, height, channels; /* 1 or 3 */
    uint8_t *pixels;
    size_t capacity;
};
void image_fini(struct image *image);

/* Sample `index` (< count): decodes it into *image and sets *label in [0, classes). STATUS_CORRUPT: this one
 * cannot be decoded (folder only); the text names the file and, where the library says it, the reason. Any
 * thread, one at a time per dataset. */
enum status dataset_read(struct dataset *dataset, uint64_t index, struct image *image, int32_t *label,
                         struct error *error);

#endif

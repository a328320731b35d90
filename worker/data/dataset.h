/* The room worker/data: reads what a job learns from, and makes batches of it. Images are datasets (this
 * header), which the loader turns into batches (loader.h); a text is a corpus (corpus.h). The room includes
 * worker/job, kernels/base and kernels/lanes; models, servers, trainers and the daemon's check include it.
 *
 *     dataset     labelled images, as their files hold them
 *     split       the training part or the held-out part of a dataset or corpus
 *     sample      one image with its label
 *     epoch       one pass over the training split, in an order drawn for it
 *     batch       the samples, or the rows of tokens, of one update of one trainer
 *     corpus      a text as numbers of words
 *     token       a word, a mark, or "<eos>", the end of a line
 *     vocabulary  the words that a language model knows, and their numbers
 *
 * A dataset is labelled images as their files hold them. This header reads; order and augmentation are the
 * loader's.
 *
 *   synthetic   No files: the tutorial's random data. Images are normal(0, 1), labels uniform in
 *               [0, classes). Samples cannot be read one by one: the loader makes whole batches (loader.h).
 *   idx         The MNIST family: PATH/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-…,
 *               t10k-labels-…, each plain or with .gz behind its name (read through zlib).
 *               Format: yann.lecun.com/exdb/mnist
 *   cifar       CIFAR-10: PATH/data_batch_1.bin … data_batch_5.bin, test_batch.bin. CIFAR-100 (fine labels):
 *               train.bin, test.bin. Format: cs.toronto.edu/~kriz/cifar.html, "binary version"
 *   folder      PATH/train/CLASS/NAME.{jpg,jpeg,png} and PATH/test/CLASS/…. Classes are numbered in the byte
 *               order of their names and must be the same in train and test; the files of a class follow in
 *               byte order too. The folder test may be absent: then nothing is evaluated. Passed over: names
 *               that begin with a dot, files beside the class folders, folders inside them, and other endings
 *               (letter case does not matter). Each read decodes the file anew (image.h). A file that cannot
 *               be opened or decoded is skipped, counted, and named once.
 *
 *   class       No files: /trainers/class has the samples, and only dataset_probe knows this kind.
 *
 * Errors. STATUS_NOT_FOUND: a file is missing (for Debian's dataset-fashion-mnist the text names the
 * package). STATUS_CORRUPT: a file is truncated, too long or mislabelled; the text names the file and the
 * offset, for a packed file the offset in its inflated contents. STATUS_INVALID: a class folder without
 * images, no class folder, class folders in test that differ from those in train, or more classes than
 * /model/classes. */
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H

#include "kernels/base/status.h"
#include "worker/data/image.h"
#include "worker/job/job.h"

enum dataset_split { DATASET_TRAIN, DATASET_EVALUATION };

/* The size of a job's data, read from headers and names alone. */
struct dataset_info {
    uint64_t train, evaluation; /* samples; `train` after /data/limit. synthetic and class: 0 and 0 */
};

/* Finds and opens every file of the job's data, and checks its header and size but not its samples. Blocks on
 * files, briefly. Called by `check`, by the servers' schedule, and by the supervisor before it starts a
 * worker. */
enum status dataset_probe(struct dataset_info *info, const struct job *job, struct error *error);

struct dataset;

/* Opens one split. The files of idx and cifar are read into memory whole, and every label and the end of each
 * file are checked, samples beyond /data/limit included. STATUS_INVALID: DATASET_EVALUATION of a kind or
 * folder that has no held-out data. */
enum status dataset_open(struct dataset **out, const struct job *job, enum dataset_split split,
                         struct error *error);
void dataset_free(struct dataset *dataset);

/* Samples, after /data/limit (training only: the first ones). synthetic: 0. */
uint64_t dataset_count(const struct dataset *dataset);

/* Decodes sample `index` (< count) into *image and sets *label in [0, classes). STATUS_CORRUPT: this sample
 * cannot be decoded (folder only); the text names the file and, where the library gives one, the reason. Any
 * thread, one at a time per dataset. */
enum status dataset_read(struct dataset *dataset, uint64_t index, struct image *image, int32_t *label,
                         struct error *error);

#endif

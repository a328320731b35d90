/* The command `coalesced export` of an image classifier. One process, one thread; no messages, no math
 * library. */
#ifndef WORKER_DATA_PARALLEL_CLASSIFIER_EXPORT_H
#define WORKER_DATA_PARALLEL_CLASSIFIER_EXPORT_H

#include "kernels/base/status.h"
#include "worker/job/job.h"

/* Writes the model of `checkpoint`, a checkpoint's folder or a safetensors file with the names of the job's
 * model, to the ONNX file `path` (worker/model/onnx.h). Errors as checkpoint_load_model and
 * onnx_write_classifier; STATUS_NO_MEMORY. */
enum status classifier_export(const char *path, const char *checkpoint, const struct job *job,
                              struct error *error);

#endif

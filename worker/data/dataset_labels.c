/* The check of labels that were read from a file into memory; any thread. */
#include "worker/data/dataset_internal.h"

enum status dataset_check_labels(const struct dataset *dataset, uint64_t first, const struct data_file *file,
                                 uint64_t offset, const struct job *job, struct error *error)
{
    for (uint64_t i = first; i < dataset->count; i++)
        if (dataset_label_at(dataset, i) >= job->model.classes)
            return error_set(error, STATUS_CORRUPT,
                             "%.300s: offset %llu: label %u, where /model/classes is %u", file->path,
                             (unsigned long long)(offset + (i - first) * dataset->label_stride),
                             dataset_label_at(dataset, i), job->model.classes);
    return STATUS_OK;
}

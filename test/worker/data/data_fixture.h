/* Data files in a folder of a test's own, and a job that reads them. */
#ifndef TEST_WORKER_DATA_DATA_FIXTURE_H
#define TEST_WORKER_DATA_DATA_FIXTURE_H

#include "test/process.h"
#include "worker/data/loader.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* The job's /data/path is the folder. */
struct data_fixture {
    char folder[64];
    struct job job;
};

static struct data_fixture data;

/* A job that trains on 4 x 4 gray images in `folder`, four at a time. */
static inline void data_set_job(const char *folder)
{
    data.job = (struct job){.kind = JOB_PARAMETER_SERVER,
                            .seed = 543,
                            .model = {.classes = 10},
                            .trainers = {.count = 1, .batch = 4},
                            .data = {.kind = JOB_DATA_IDX,
                                     .size = 4,
                                     .channels = 1,
                                     .mean = {.count = 1, .value = {0}},
                                     .std = {.count = 1, .value = {1}}},
                            .evaluation = {.has_every = true, .every = 1, .batch = 3}};
    snprintf(data.job.data.path, sizeof data.job.data.path, "%s", folder);
}

static inline void data_open(void)
{
    folder_make(data.folder);
    data_set_job(data.folder);
}

static inline void data_close(void)
{
    folder_remove(data.folder);
}

static inline const char *data_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", data.folder, name);
    return path;
}

static inline void data_make_folder(const char *name)
{
    ck_assert_int_eq(mkdir(data_path(name), 0755), 0);
}

static inline void data_write(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(data_path(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

/* `bytes` as a gzip file of one member in `packed`, which has room for `room`. Its size. */
static inline size_t data_pack(uint8_t *packed, size_t room, const void *bytes, size_t count)
{
    z_stream stream = {0};
    ck_assert_int_eq(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (z_const Bytef *)(uintptr_t)bytes;
    stream.avail_in = (uInt)count;
    stream.next_out = packed;
    stream.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return room - stream.avail_out;
}

static inline void data_write_packed(const char *name, const void *bytes, size_t count)
{
    uint8_t packed[1 << 16];
    data_write(name, packed, data_pack(packed, sizeof packed, bytes, count));
}

/* ---- the MNIST family ---- */

enum { IDX_IMAGES_HEADER = 16, IDX_LABELS_HEADER = 8, IDX_BYTES_MAX = 4096 };

struct idx_file {
    uint8_t bytes[IDX_BYTES_MAX];
    size_t count;
};

static inline void idx_word(uint8_t *to, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(word >> (24 - 8 * i));
}

/* Pixel p of image i is (7 i + p) mod 256. */
static inline struct idx_file idx_images(uint32_t count, uint32_t height, uint32_t width)
{
    struct idx_file file = {.count = IDX_IMAGES_HEADER + (size_t)count * height * width};
    ck_assert_uint_le(file.count, sizeof file.bytes);
    idx_word(file.bytes, 0x803);
    idx_word(file.bytes + 4, count);
    idx_word(file.bytes + 8, height);
    idx_word(file.bytes + 12, width);
    for (uint32_t i = 0; i < count * height * width; i++)
        file.bytes[IDX_IMAGES_HEADER + i] = (uint8_t)(7 * (i / (height * width)) + i % (height * width));
    return file;
}

/* Label i is i mod 10. */
static inline struct idx_file idx_labels(uint32_t count)
{
    struct idx_file file = {.count = IDX_LABELS_HEADER + count};
    ck_assert_uint_le(file.count, sizeof file.bytes);
    idx_word(file.bytes, 0x801);
    idx_word(file.bytes + 4, count);
    for (uint32_t i = 0; i < count; i++)
        file.bytes[IDX_LABELS_HEADER + i] = (uint8_t)(i % 10);
    return file;
}

/* A whole dataset of 4 x 4 images. */
static inline void idx_write(uint32_t train, uint32_t evaluation)
{
    struct idx_file file = idx_images(train, 4, 4);
    data_write("train-images-idx3-ubyte", file.bytes, file.count);
    file = idx_labels(train);
    data_write("train-labels-idx1-ubyte", file.bytes, file.count);
    file = idx_images(evaluation, 4, 4);
    data_write("t10k-images-idx3-ubyte", file.bytes, file.count);
    file = idx_labels(evaluation);
    data_write("t10k-labels-idx1-ubyte", file.bytes, file.count);
}

/* ---- loaders ---- */

static inline struct loader *data_loader(enum dataset_split split, uint32_t part, uint32_t parts,
                                         uint64_t first_step)
{
    struct error error = {0};
    struct loader *loader = NULL;
    const struct loader_config config = {
        .job = &data.job, .split = split, .share = part, .shares = parts, .first_step = first_step};
    ck_assert_msg(loader_new(&loader, &config, &error) == STATUS_OK, "%s", error.text);
    return loader;
}

static inline const struct batch *data_next(struct loader *loader)
{
    struct error error = {0};
    const struct batch *batch = NULL;
    ck_assert_msg(loader_next(loader, MONOTIME_NEVER, &batch, &error) == STATUS_OK, "%s", error.text);
    return batch;
}

#endif

/* The image files of test/golden/images.txt (images.py makes them and describes a line). An error in the
 * file fails the running check. */
#ifndef TEST_WORKER_DATA_GOLDEN_IMAGES_H
#define TEST_WORKER_DATA_GOLDEN_IMAGES_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { GOLDEN_FILE_BYTES_MAX = 2048, GOLDEN_PIXELS_MAX = 13 * 9 * 3 };

struct golden_image {
    char name[64];
    unsigned bound, width, height, channels;
    uint8_t file[GOLDEN_FILE_BYTES_MAX], pixels[GOLDEN_PIXELS_MAX];
    size_t file_bytes;
};

/* Returns how many bytes the hexadecimal word has. */
static inline size_t golden_bytes(uint8_t *to, size_t room, const char *hex)
{
    const size_t bytes = strlen(hex) / 2;
    ck_assert_uint_le(bytes, room);
    for (size_t i = 0; i < bytes; i++) {
        unsigned byte;
        ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
        to[i] = (uint8_t)byte;
    }
    return bytes;
}

static inline FILE *golden_images_open(void)
{
    char versions[256];
    FILE *file = fopen("test/golden/images.txt", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(versions, sizeof versions, file));
    return file;
}

/* False at the end of the file. */
static inline int golden_images_next(FILE *file, struct golden_image *image)
{
    char hex[2 * GOLDEN_FILE_BYTES_MAX + 1], pixels[2 * GOLDEN_PIXELS_MAX + 1];
    int got = fscanf(file, "%63s %u %u %u %u %4096s %702s", image->name, &image->bound, &image->width,
                     &image->height, &image->channels, hex, pixels);
    if (got == EOF)
        return 0;
    ck_assert_int_eq(got, 7);
    image->file_bytes = golden_bytes(image->file, sizeof image->file, hex);
    ck_assert_uint_eq(golden_bytes(image->pixels, sizeof image->pixels, pixels),
                      image->width * image->height * image->channels);
    return 1;
}

static inline struct golden_image golden_image(const char *name)
{
    struct golden_image image = {0};
    FILE *file = golden_images_open();
    while (strcmp(image.name, name) != 0)
        ck_assert_msg(golden_images_next(file, &image), "no %s in test/golden/images.txt", name);
    fclose(file);
    return image;
}

#endif

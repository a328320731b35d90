/* A GIF grows with each picture; of a PNG the last picture is kept until the end. The command's process. */
#include "daemon/commands/film.h"

#include "kernels/base/output.h"

#include <errno.h>
#include <gif_lib.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE_MAX = 65535, COLORS = 256, DELAY_CS = 4 /* hundredths of a second: 25 pictures a second */ };

struct film {
    const char *path;
    struct output output;
    GifFileType *gif; /* NULL: the film is a PNG */
    uint32_t width, height;
    uint8_t *last;          /* (height, width, 3) of a PNG */
    GifByteType *planes[4]; /* (height * width) red, green, blue, and the colours' numbers */
};

static bool ends_with(const char *path, const char *ending)
{
    const size_t length = strlen(path), bytes = strlen(ending);
    return length > bytes && strcmp(path + length - bytes, ending) == 0;
}

bool film_is_path(const char *path)
{
    return ends_with(path, ".gif") || ends_with(path, ".png");
}

/* `code`: giflib's. */
static enum status gif_failed(const struct film *film, int code, struct error *error)
{
    const char *why = GifErrorString(code);
    return error_set(error, STATUS_IO, "%.300s: %s", film->path, why != NULL ? why : "cannot be written");
}

static int gif_write(GifFileType *gif, const GifByteType *bytes, int count)
{
    const struct film *film = gif->UserData;
    return (int)fwrite(bytes, 1, (size_t)count, film->output.file);
}

enum status film_open(struct film **out, const char *path, struct error *error)
{
    struct film *film = calloc(1, sizeof *film);
    int code = 0;
    *out = NULL;
    if (film == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a film");
    film->path = path;
    if (!output_open(&film->output, path)) {
        error_set_errno(error, errno, "%.300s", path);
    } else if (!ends_with(path, ".gif") || (film->gif = EGifOpen(film, gif_write, &code)) != NULL) {
        *out = film;
        return STATUS_OK;
    } else {
        gif_failed(film, code, error);
        output_close(&film->output, false);
    }
    free(film);
    return error->status;
}

/* ---- GIF ---- */

static bool gif_put(const struct film *film, const ColorMapObject *colors)
{
    const GraphicsControlBlock control = {
        .DisposalMode = DISPOSE_DO_NOT, .DelayTime = DELAY_CS, .TransparentColor = NO_TRANSPARENT_COLOR};
    GifByteType bytes[4];
    EGifGCBToExtension(&control, bytes);
    return EGifPutExtension(film->gif, GRAPHICS_EXT_FUNC_CODE, sizeof bytes, bytes) == GIF_OK &&
           EGifPutImageDesc(film->gif, 0, 0, (int)film->width, (int)film->height, false, colors) == GIF_OK &&
           EGifPutLine(film->gif, film->planes[3], (int)(film->width * film->height)) == GIF_OK;
}

static enum status gif_add(struct film *film, const uint8_t *rgb, struct error *error)
{
    ColorMapObject *colors = GifMakeMapObject(COLORS, NULL);
    int count = COLORS;
    if (colors == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a picture's colours");
    for (size_t i = 0; i < (size_t)film->width * film->height; i++)
        for (int c = 0; c < 3; c++)
            film->planes[c][i] = rgb[3 * i + (size_t)c];
    const bool good = GifQuantizeBuffer(film->width, film->height, &count, film->planes[0], film->planes[1],
                                        film->planes[2], film->planes[3], colors->Colors) == GIF_OK &&
                      gif_put(film, colors);
    GifFreeMapObject(colors);
    return good ? STATUS_OK : gif_failed(film, film->gif->Error, error);
}

/* ---- pictures ---- */

/* Memory for pictures of the first one's size. */
static enum status begin(struct film *film, uint32_t width, uint32_t height, struct error *error)
{
    const size_t pixels = (size_t)width * height;
    if (width == 0 || height == 0 || width > SIDE_MAX || height > SIDE_MAX)
        return error_set(error, STATUS_INVALID, "a picture of %u * %u pixels: expected 1 to %d on a side",
                         width, height, SIDE_MAX);
    film->width = width;
    film->height = height;
    film->last = film->gif == NULL ? malloc(pixels * 3) : NULL;
    for (int c = 0; c < 4 && film->gif != NULL; c++)
        if ((film->planes[c] = malloc(pixels)) == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a picture");
    if (film->gif == NULL && film->last == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a picture");
    GifFileType *gif = film->gif;
    if (gif == NULL)
        return STATUS_OK;
    EGifSetGifVersion(gif, true);
    const bool good = EGifPutScreenDesc(gif, (int)width, (int)height, 8, 0, NULL) == GIF_OK &&
                      EGifPutExtensionLeader(gif, APPLICATION_EXT_FUNC_CODE) == GIF_OK &&
                      EGifPutExtensionBlock(gif, 11, "NETSCAPE2.0") == GIF_OK && /* repeats without end */
                      EGifPutExtensionBlock(gif, 3, "\1\0\0") == GIF_OK &&
                      EGifPutExtensionTrailer(gif) == GIF_OK;
    return good ? STATUS_OK : gif_failed(film, gif->Error, error);
}

enum status film_add(struct film *film, uint32_t width, uint32_t height, const uint8_t *rgb,
                     struct error *error)
{
    const enum status status = film->width == 0 ? begin(film, width, height, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    if (width != film->width || height != film->height)
        return error_set(error, STATUS_INVALID, "a picture of %u * %u pixels: expected %u * %u, as before",
                         width, height, film->width, film->height);
    if (film->gif != NULL)
        return gif_add(film, rgb, error);
    memcpy(film->last, rgb, (size_t)width * height * 3);
    return STATUS_OK;
}

/* ---- the end ---- */

enum status film_close(struct film *film, bool is_whole, struct error *error)
{
    int code = 0;
    enum status status = STATUS_OK;
    if (film == NULL)
        return STATUS_OK;
    png_image image = {
        .version = PNG_IMAGE_VERSION, .width = film->width, .height = film->height, .format = PNG_FORMAT_RGB};
    is_whole = is_whole && film->width > 0;
    if (is_whole && film->last != NULL &&
        !png_image_write_to_stdio(&image, film->output.file, 0, film->last, 0, NULL))
        status = error_set(error, STATUS_IO, "%.300s: %s", film->path, image.message);
    if (film->gif != NULL && EGifCloseFile(film->gif, &code) != GIF_OK && is_whole)
        status = gif_failed(film, code, error);
    is_whole = is_whole && status == STATUS_OK;
    if (!output_close(&film->output, is_whole) && is_whole)
        status = error_set_errno(error, errno, "%.300s", film->path);
    free(film->last);
    for (int c = 0; c < 4; c++)
        free(film->planes[c]);
    free(film);
    return status;
}

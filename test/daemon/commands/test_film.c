/* Films: what giflib and libpng read of them is what was put in. */
#include "daemon/commands/film.h"
#include "test/process.h"
#include "test/workplace.h"

#include <check.h>
#include <gif_lib.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WIDTH = 6, HEIGHT = 4, BYTES = WIDTH * HEIGHT * 3 };

static char folder[64], path[96];
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void setup(void)
{
    folder_make(folder);
}

static void teardown(void)
{
    folder_remove(folder);
}

/* White, with one red, green or blue pixel that wanders. */
static void paint(uint8_t rgb[BYTES], unsigned frame)
{
    memset(rgb, 255, BYTES);
    for (unsigned c = 0; c < 3; c++)
        rgb[3 * frame + c] = c == frame % 3 ? 255 : 0;
}

static void make_film(const char *name, unsigned frames)
{
    struct film *film;
    uint8_t rgb[BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(film_open(&film, path, &error));
    for (unsigned frame = 0; frame < frames; frame++) {
        paint(rgb, frame);
        must(film_add(film, WIDTH, HEIGHT, rgb, &error));
    }
    must(film_close(film, true, &error));
}

/* Each picture, to five bits of a colour, which is what quantizing leaves. */
START_TEST(a_gif_has_every_picture)
{
    int code = 0;
    struct stat info;
    uint8_t rgb[BYTES];
    make_film("film.gif", 5);
    GifFileType *gif = DGifOpenFileName(path, &code);
    ck_assert_ptr_nonnull(gif);
    ck_assert_int_eq(DGifSlurp(gif), GIF_OK);
    ck_assert_int_eq(gif->ImageCount, 5);
    ck_assert(gif->SWidth == WIDTH && gif->SHeight == HEIGHT);
    for (int frame = 0; frame < 5; frame++) {
        const SavedImage *image = &gif->SavedImages[frame];
        paint(rgb, (unsigned)frame);
        for (int i = 0; i < WIDTH * HEIGHT; i++) {
            const GifColorType color = image->ImageDesc.ColorMap->Colors[image->RasterBits[i]];
            ck_assert(abs(color.Red - rgb[3 * i]) < 8 && abs(color.Green - rgb[3 * i + 1]) < 8 &&
                      abs(color.Blue - rgb[3 * i + 2]) < 8);
        }
    }
    DGifCloseFile(gif, &code);
    ck_assert_int_eq(stat(path, &info), 0);
    const mode_t mask = umask(0);
    umask(mask);
    ck_assert_uint_eq(info.st_mode & 0777, 0666 & ~mask);
}
END_TEST

START_TEST(a_png_is_the_last_picture)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    uint8_t rgb[BYTES], seen[BYTES];
    make_film("film.png", 3);
    ck_assert(png_image_begin_read_from_file(&image, path));
    ck_assert(image.width == WIDTH && image.height == HEIGHT);
    image.format = PNG_FORMAT_RGB;
    ck_assert(png_image_finish_read(&image, NULL, seen, 0, NULL));
    paint(rgb, 2);
    ck_assert_mem_eq(seen, rgb, BYTES);
}
END_TEST

START_TEST(pictures_have_one_size)
{
    static const char *const names[] = {"film.gif", "film.png"};
    uint8_t rgb[BYTES] = {0};
    struct film *film;
    snprintf(path, sizeof path, "%s/%s", folder, names[_i]);
    must(film_open(&film, path, &error));
    ck_assert_int_eq(film_add(film, 0, HEIGHT, rgb, &error), STATUS_INVALID);
    ck_assert_int_eq(film_add(film, 65536, HEIGHT, rgb, &error), STATUS_INVALID);
    must(film_add(film, WIDTH, HEIGHT, rgb, &error));
    ck_assert_int_eq(film_add(film, HEIGHT, WIDTH, rgb, &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "a picture of 4 * 6 pixels: expected 6 * 4, as before");
    must(film_close(film, true, &error));
}
END_TEST

START_TEST(a_file_that_cannot_be_made_is_named)
{
    struct film *film = NULL;
    snprintf(path, sizeof path, "%s/nowhere/film.gif", folder);
    ck_assert_int_eq(film_open(&film, path, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "nowhere/film.gif: No such file or directory"));
    snprintf(path, sizeof path, "%s/nowhere/film.png", folder);
    ck_assert_int_eq(film_open(&film, path, &error), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "nowhere/film.png"));
}
END_TEST

/* An environment that draws nothing, or that fails later, costs nobody an earlier film. */
START_TEST(a_film_that_fails_leaves_the_earlier_one)
{
    static const char *const names[] = {"film.gif", "film.png"};
    uint8_t rgb[BYTES] = {0};
    struct film *film;
    for (int pictures = 0; pictures < 2; pictures++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[_i]);
        text_write(path, "earlier");
        must(film_open(&film, path, &error));
        if (pictures > 0)
            must(film_add(film, WIDTH, HEIGHT, rgb, &error));
        must(film_close(film, pictures == 0, &error));
        char *bytes = file_read(path);
        ck_assert_str_eq(bytes, "earlier");
        free(bytes);
        strcat(path, ".tmp");
        ck_assert_int_ne(access(path, F_OK), 0);
    }
}
END_TEST

START_TEST(a_path_says_what_it_is)
{
    ck_assert(film_is_path("a.gif") && film_is_path("/b/c.png"));
    ck_assert(!film_is_path(".gif") && !film_is_path("text") && !film_is_path("a.jpg") && !film_is_path(""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("film");
    TCase *films = tcase_create("films");
    tcase_add_checked_fixture(films, setup, teardown);
    tcase_add_test(films, a_gif_has_every_picture);
    tcase_add_test(films, a_png_is_the_last_picture);
    tcase_add_loop_test(films, pictures_have_one_size, 0, 2);
    tcase_add_loop_test(films, a_film_that_fails_leaves_the_earlier_one, 0, 2);
    tcase_add_test(films, a_file_that_cannot_be_made_is_named);
    tcase_add_test(films, a_path_says_what_it_is);
    suite_add_tcase(suite, films);
    return suite_run(suite);
}

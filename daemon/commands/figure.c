/* gnuplot between two files in memory: one with its script, one for its picture. The command's process. */
#include "daemon/commands/figure.h"

#include "daemon/process/program.h"
#include "kernels/base/file.h"
#include "kernels/base/output.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Colours that people with any eyes tell apart: Okabe and Ito, "Color Universal Design" (2002). */
static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                     "#e69f00", "#56b4e9", "#000000", "#8a8a00"};
enum { COLORS = sizeof colors / sizeof colors[0], LABEL_BYTES = 1024, LABEL_CHARACTERS = 160 };

static bool ends_with(const char *path, const char *ending)
{
    const size_t length = strlen(path), bytes = strlen(ending);
    return length > bytes && strcmp(path + length - bytes, ending) == 0;
}

bool figure_is_path(const char *path)
{
    return ends_with(path, ".png") || ends_with(path, ".svg");
}

/* ---- the script ---- */

/* A string of gnuplot: in single quotes, in which a quote is written twice. */
static void write_quoted(FILE *script, const char *text)
{
    char shown[LABEL_BYTES];
    text_show(shown, sizeof shown, text, strlen(text), LABEL_CHARACTERS);
    fputc('\'', script);
    for (const char *at = shown; *at != '\0'; at++)
        fprintf(script, *at == '\'' ? "''" : "%c", *at);
    fputc('\'', script);
}

static void write_settings(FILE *script, const struct figure *figure, const char *path)
{
    fprintf(script,
            "set encoding utf8\n"
            "set terminal %s noenhanced size 1200,760 font 'DejaVu Sans,15' linewidth 1.6 background "
            "'#ffffff'\n"
            "set border 3 linecolor rgb '#444444'\n"
            "set tics nomirror out textcolor rgb '#444444'\n"
            "set grid linecolor rgb '#d8d8d8' linewidth 0.8\n"
            "set key bottom center outside horizontal reverse Left samplen 2.5 height 1.5\n",
            ends_with(path, ".png") ? "pngcairo" : "svg dynamic");
    fputs("set title ", script);
    write_quoted(script, figure->title);
    fputs("\nset xlabel ", script);
    write_quoted(script, figure->x_label);
    fputs("\nset ylabel ", script);
    write_quoted(script, figure->y_label);
    fputc('\n', script);
}

static void write_points(FILE *script, const struct figure_series *series, size_t number)
{
    fprintf(script, "$series%zu << end\n", number);
    for (size_t i = 0; i < series->count; i++) {
        const struct band_point *point = &series->points[i];
        fprintf(script, "%.17g %.17g %.17g %.17g\n", point->x, point->median, point->low, point->high);
    }
    fputs("end\n", script);
}

/* All bands first, so that none covers a line. */
static void write_plot(FILE *script, const struct figure *figure)
{
    const char *before = "plot ";
    for (size_t i = 0; i < figure->count; i++, before = ", ")
        if (figure->series[i].has_band)
            fprintf(
                script,
                "%s$series%zu using 1:3:4 with filledcurves fillcolor rgb '%s' fillstyle transparent solid "
                "0.15 noborder notitle",
                before, i, colors[i % COLORS]);
        else
            fprintf(script, "%sNaN notitle", before);
    for (size_t i = 0; i < figure->count; i++) {
        const struct figure_series *series = &figure->series[i];
        fprintf(script, ", $series%zu using 1:2 with %s linecolor rgb '%s' linewidth 1.8 dashtype %zu title ",
                i, series->count > 1 ? "lines" : "linespoints pointtype 7", colors[i % COLORS],
                i / COLORS % 5 + 1);
        write_quoted(script, series->label);
    }
    fputc('\n', script);
}

static enum status write_script(const struct program *gnuplot, const struct figure *figure, const char *path,
                                struct error *error)
{
    const int fd = fcntl(gnuplot->input, F_DUPFD_CLOEXEC, 0);
    FILE *script = fd < 0 ? NULL : fdopen(fd, "w");
    if (script == NULL) {
        error_set_errno(error, errno, "cannot write a script for gnuplot");
        if (fd >= 0)
            close(fd);
        return error->status;
    }
    write_settings(script, figure, path);
    for (size_t i = 0; i < figure->count; i++)
        write_points(script, &figure->series[i], i);
    write_plot(script, figure);
    const bool is_good = !ferror(script);
    if (fclose(script) == 0 && is_good)
        return STATUS_OK;
    return error_set_errno(error, errno, "cannot write a script for gnuplot");
}

/* ---- gnuplot ---- */

/* gnuplot's first line with a letter; the lines above it repeat the script and point at the mistake. */
static void read_words(char words[200], const struct program *gnuplot)
{
    char text[PROGRAM_WORDS_BYTES];
    program_read_words(text, gnuplot);
    const char *at = strstr(text, "line ");
    at = at != NULL ? at : text + strspn(text, " \n");
    text_show(words, 200, at, strcspn(at, "\n"), 120);
}

static enum status run_gnuplot(const struct program *gnuplot, struct error *error)
{
    static char name[] = "gnuplot", option[] = "-d"; /* without the settings of the user's own files */
    char *const argv[] = {name, option, NULL};
    char words[200], end[32];
    struct stat picture;
    int how;
    const enum status status = program_run(gnuplot, argv, &how, error);
    if (status == STATUS_NOT_FOUND)
        return error_set(error, STATUS_UNAVAILABLE,
                         "gnuplot is not in PATH: expected the program that draws figures (Debian's package "
                         "gnuplot-nox)");
    if (status != STATUS_OK)
        return status;
    if (how == 0 && fstat(gnuplot->output, &picture) == 0 && picture.st_size > 0)
        return STATUS_OK;
    read_words(words, gnuplot);
    program_name_end(end, how);
    return error_set(error, STATUS_INTERNAL, "gnuplot drew no figure (%s): %s", end, words);
}

bool figure_is_possible(void)
{
    return program_exists("gnuplot");
}

/* ---- the file ---- */

static bool copy_picture(int from, FILE *to)
{
    char block[1 << 16];
    ssize_t bytes;
    for (uint64_t offset = 0; (bytes = file_read_at(from, block, sizeof block, offset)) > 0;
         offset += (uint64_t)bytes)
        fwrite(block, 1, (size_t)bytes, to); /* output_close asks for errors */
    return bytes == 0;
}

static enum status write_file(const struct program *gnuplot, const char *path, struct error *error)
{
    struct output output;
    if (output_open(&output, path) && output_close(&output, copy_picture(gnuplot->output, output.file)))
        return STATUS_OK;
    error_set_errno(error, errno, "cannot write %.300s", path);
    return error_of_output(error);
}

enum status figure_write(const struct figure *figure, const char *path, struct error *error)
{
    struct program gnuplot;
    enum status status = program_open(&gnuplot, error);
    if (status == STATUS_OK)
        status = write_script(&gnuplot, figure, path, error);
    if (status == STATUS_OK)
        status = run_gnuplot(&gnuplot, error);
    if (status == STATUS_OK)
        status = write_file(&gnuplot, path, error);
    program_close(&gnuplot);
    return status;
}

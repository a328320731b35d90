# Draws what scripts/bench-batching measured: its table as a figure, with the peer's columns beside ours if peer is 1.
#
#   gnuplot -e "table='t.tsv'; figure='t.png'; episodes=10; machine='...'; peer=0" scripts/bench-batching.gnuplot
set terminal pngcairo size 1200,760 font 'DejaVu Sans,15' linewidth 1.6 background '#ffffff'
set output figure
set datafile separator tab
set title sprintf("CartPole, %d episodes of 500 steps per observer: time of the whole job", episodes) \
          noenhanced font ',18' offset 0,1.2
set label 1 machine at graph 0.5,1.035 center noenhanced font ',12' textcolor rgb '#666666'
set tmargin 4.5
set xlabel 'world size (1 agent, the rest observers)'
set ylabel 'seconds'
set border 3 linecolor rgb '#444444'
set tics nomirror out textcolor rgb '#444444'
set xtics 1
set grid ytics linecolor rgb '#d8d8d8' linewidth 0.8
set autoscale xfix
set offsets 0.3, 0.3, 0, 0
set style line 1 linecolor rgb '#0b6e99' linewidth 2.2 pointtype 7 pointsize 1.5
set style line 2 linecolor rgb '#d9730d' linewidth 2.2 pointtype 5 pointsize 1.4
set style line 3 linecolor rgb '#0b6e99' linewidth 1.6 pointtype 6 pointsize 1.5 dashtype (6,4)
set style line 4 linecolor rgb '#d9730d' linewidth 1.6 pointtype 4 pointsize 1.4 dashtype (6,4)
if (peer) {
    set logscale y
    set ylabel 'seconds (logarithmic)'
    set grid mytics linecolor rgb '#ececec' linewidth 0.5
    set bmargin 7.5
    set key at screen 0.53,0.045 center horizontal reverse Left samplen 3 width 1 maxcols 2
    plot table index 0 every ::1 using 1:4 with linespoints ls 3 title 'torch.distributed.rpc, batch', \
         '' index 0 every ::1 using 1:5 with linespoints ls 4 title 'torch.distributed.rpc, no batch', \
         '' index 0 every ::1 using 1:2 with linespoints ls 1 title 'coalesced, batch', \
         '' index 0 every ::1 using 1:3 with linespoints ls 2 title 'coalesced, no batch'
} else {
    set yrange [0:*]
    set key top left reverse Left samplen 2.5 spacing 1.25
    plot table every ::1 using 1:3 with linespoints linestyle 2 title 'no batch', \
         table every ::1 using 1:2 with linespoints linestyle 1 title 'batch'
}

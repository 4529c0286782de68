from penstock.demo.command import demo

demo(prog_name="penstock demo")

"""stub"""
import typer

app = typer.Typer()
@app.command()
def attention(): ...
@app.command()
def decode(): ...

FROM python:3.13-slim
COPY pyproject.toml README.md LICENSE /src/
COPY runner /src/runner
COPY backends /src/backends
COPY api /src/api
RUN pip install --no-cache-dir --only-binary :all: --no-binary runyard "/src[http]" && rm -rf /src && useradd --create-home runyard
USER runyard
WORKDIR /app
ENTRYPOINT ["runyard"]
CMD ["worker"]
